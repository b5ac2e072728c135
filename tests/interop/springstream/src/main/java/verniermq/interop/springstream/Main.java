package verniermq.interop.springstream;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * What the RocketMQ binder of Spring Cloud Stream offers, each once: send by a bridge, tags, delay, order, and a
 * message whose function fails the first time. Bindings are in {@code application.properties}; each line of standard
 * output is a JSON object. It ends with SIGTERM.
 */
@SpringBootApplication
public class Main {
    private static PrintStream lines;
    private final AtomicInteger failures = new AtomicInteger();

    static synchronized void write(String event, String what) {
        lines.println("{\"event\":\"" + event + "\",\"what\":\"" + what.replace("\"", "'") + "\"}");
    }

    public static void main(String[] arguments) throws Exception {
        lines = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8.name());
        System.setOut(System.err);
        try (var context = new SpringApplication(Main.class).run(arguments)) {
            StreamBridge bridge = context.getBean(StreamBridge.class);
            write("started", "");
            send(bridge, "plain-out", tagged("plain", "good").build());
            send(bridge, "plain-out", tagged("another tag", "bad").build());
            send(bridge, "plain-out", tagged("delayed", "good").setHeader("DELAY", 1).build());
            send(bridge, "plain-out", tagged("again", "good").build());
            for (int number = 0; number < 5; number++) {
                send(bridge, "orderly-out", tagged("step " + number, "good").build());
            }
            write("produced", "");
            Thread.currentThread().join();
        }
    }

    private static MessageBuilder<String> tagged(String body, String tag) {
        return MessageBuilder.withPayload(body).setHeader("TAGS", tag);
    }

    private static void send(StreamBridge bridge, String binding, Message<String> message) {
        write("sent", String.valueOf(bridge.send(binding, message)));
    }

    @Bean
    public Consumer<Message<String>> plain() {
        return message -> {
            if (message.getPayload().equals("again") && failures.getAndIncrement() == 0) {
                throw new IllegalStateException("fails the first time");
            }
            write("plain", message.getPayload());
        };
    }

    @Bean
    public Consumer<Message<String>> orderly() {
        return message -> write("orderly", message.getPayload());
    }

    @Bean
    public MessageQueueSelector oneQueue() {
        return (queues, message, key) -> queues.get(0);
    }
}
