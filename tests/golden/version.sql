SELECT max(outbox_versions.version) AS max_1
FROM outbox_versions;
