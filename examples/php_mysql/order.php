<?php
// Places an order in MySQL or MariaDB, and publishes it in the same transaction:
//
//   DSN="mysql:host=127.0.0.1;dbname=shop;charset=utf8mb4" DB_USER=shop DB_PASSWORD=secret php order.php ada@example.org

$database = new PDO(getenv('DSN'), getenv('DB_USER'), getenv('DB_PASSWORD') ?: '');

$database->exec('CREATE TABLE IF NOT EXISTS orders (id bigint AUTO_INCREMENT PRIMARY KEY, email varchar(255) NOT NULL)');

$database->beginTransaction();
try {
    $database->prepare('INSERT INTO orders (email) VALUES (?)')->execute([$argv[1]]);
    $id = (int) $database->lastInsertId();
    publish($database, 'order.created', ['id' => $id, 'email' => $argv[1]], "order:$id");
    if (!filter_var($argv[1], FILTER_VALIDATE_EMAIL)) {
        throw new InvalidArgumentException("$argv[1] is no address"); // too late for the order, and for its message
    }
    $database->commit();
} catch (Throwable $error) {
    $database->rollBack();
    fwrite(STDERR, $error->getMessage() . "\n");
    exit(1);
}

/** Write a message into the feed. `$options`: other fields, such as ['destination' => 'orders', 'delay' => 60]. */
function publish(PDO $database, string $eventType, mixed $payload, ?string $key = null, array $options = []): void
{
    $database->prepare('CALL outbox_publish(?, ?, ?, ?)')->execute([
        $eventType,
        json_encode($payload, JSON_THROW_ON_ERROR),
        $key,
        json_encode((object) $options, JSON_THROW_ON_ERROR),
    ]);
}
