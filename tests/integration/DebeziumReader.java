import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import java.io.FileReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Properties;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;

/** Runs Debezium by the properties of a file, and prints each record as a worker of Kafka Connect would write it. */
public class DebeziumReader {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.load(new FileReader(arguments[0]));
        Converter keys = converter(properties, "key.converter", true), values = converter(properties, "value.converter", false);
        DebeziumEngine.create(Connect.class).using(properties).notifying(event -> {
            SourceRecord record = event.value();
            StringBuilder line = new StringBuilder("record\t" + record.topic());
            line.append("\t" + text(keys.fromConnectData(record.topic(), record.keySchema(), record.key())));
            line.append("\t" + text(values.fromConnectData(record.topic(), record.valueSchema(), record.value())));
            record.headers().forEach(header -> line.append("\t" + header.key() + "=" + header.value()));
            System.out.println(line);
        }).build().run();
    }

    static Converter converter(Properties properties, String name, boolean ofKeys) throws Exception {
        Converter made = (Converter) Class.forName(properties.getProperty(name)).getDeclaredConstructor().newInstance();
        made.configure(new HashMap<String, Object>(), ofKeys);
        return made;
    }

    static String text(byte[] bytes) {
        return bytes == null ? "" : new String(bytes, StandardCharsets.UTF_8);
    }
}
