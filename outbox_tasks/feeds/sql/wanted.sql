-- Of these feeds (a JSON array of names), those that nobody copies now, and whose source did not fail just now.
SELECT n.name FROM json_array_elements_text(:names::json) AS n(name)
WHERE NOT EXISTS (SELECT FROM :schema.outbox_feeds f WHERE f.name = n.name
                  AND (f.locked_until > clock_timestamp() OR f.not_before > clock_timestamp()))
