SELECT pg_catalog.pg_settings.name, pg_catalog.pg_settings.setting
FROM pg_catalog.pg_settings
WHERE pg_catalog.pg_settings.name = any(%(names)s::TEXT[]);
