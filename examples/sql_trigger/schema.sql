-- A shop in plain SQL. Each change of an order, in any language, publishes: the trigger does it in the same
-- transaction. Make the outbox tables first, with outbox-tasks init or outbox-tasks up.

CREATE TABLE orders (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  email  text NOT NULL,
  status text NOT NULL DEFAULT 'created' CHECK (status IN ('created', 'paid', 'shipped'))
);

CREATE TABLE order_lines (
  order_id bigint NOT NULL REFERENCES orders,
  product  text NOT NULL,
  quantity integer NOT NULL CHECK (quantity > 0)
);

-- The consumer writes what it told the customers. By the key it recognises a repeated delivery.
CREATE TABLE notifications (
  message_id uuid PRIMARY KEY,
  order_id   bigint NOT NULL,
  content    text NOT NULL
);

CREATE FUNCTION publish_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM outbox_publish(
    'order.' || NEW.status,               -- order.created, order.paid, order.shipped
    to_jsonb(NEW),
    key => 'order:' || NEW.id,
    destination => 'notifications');      -- as in outbox.toml
  RETURN NULL;
END
$$;

CREATE TRIGGER order_created AFTER INSERT ON orders
  FOR EACH ROW EXECUTE FUNCTION publish_order();

CREATE TRIGGER order_status_changed AFTER UPDATE OF status ON orders
  FOR EACH ROW WHEN (NEW.status IS DISTINCT FROM OLD.status) EXECUTE FUNCTION publish_order();
