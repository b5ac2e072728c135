package verniermq;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The official Java client of RocketMQ 5, driven from the command line; see ../README.md for the commands. */
public final class Main {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, String> OPTIONS = new HashMap<>(Map.of(
        "group", "g", "count", "1", "kind", "normal", "prefix", "m", "sql", "", "fail", "", "timeout", "60",
        "delay-ms", "3000", "tls", "false", "key", ""));

    public static void main(String[] words) throws Exception {
        for (int i = 1; i + 1 < words.length; i += 2) {
            OPTIONS.put(words[i].substring(2), words[i + 1]);
        }
        switch (words[0]) {
            case "send" -> send();
            case "check" -> check();
            case "simple" -> simple();
            case "push" -> push();
            case "bench" -> Bench.run(PROVIDER, configuration(), OPTIONS);
            default -> throw new IllegalArgumentException(words[0]);
        }
        Runtime.getRuntime().halt(0);
    }

    private static ClientConfiguration configuration() {
        var builder = ClientConfiguration.newBuilder()
            .setEndpoints(OPTIONS.get("endpoint"))
            .enableSsl(OPTIONS.get("tls").equals("true"));
        if (!OPTIONS.get("key").isEmpty()) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(OPTIONS.get("key"), OPTIONS.get("secret")));
        }
        return builder.build();
    }

    private static int count() {
        return Integer.parseInt(OPTIONS.get("count"));
    }

    private static long deadline() {
        return System.nanoTime() + (long) (Double.parseDouble(OPTIONS.get("timeout")) * 1e9);
    }

    private static synchronized void tell(String event, String... fields) {
        var line = new StringBuilder("{\"event\":\"" + event + "\"");
        for (int i = 0; i < fields.length; i += 2) {
            line.append(",\"").append(fields[i]).append("\":").append(fields[i + 1]);
        }
        System.out.println(line.append('}'));
        System.out.flush();
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + '"';
    }

    private static String text(ByteBuffer body) {
        return StandardCharsets.UTF_8.decode(body.duplicate()).toString();
    }

    private static Producer producer(TransactionResolution resolution) throws Exception {
        return PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration())
            .setTopics(OPTIONS.get("topic"))
            .setTransactionChecker(message -> {
                tell("checked", "body", quoted(text(message.getBody())));
                return resolution;
            })
            .build();
    }

    private static Message message(int number) {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(OPTIONS.get("topic"))
            .setBody((OPTIONS.get("prefix") + "-" + number).getBytes(StandardCharsets.UTF_8))
            .setTag(number % 2 == 0 ? "even" : "odd")
            .setKeys("key-" + number)
            .addProperty("n", String.valueOf(number));
        switch (OPTIONS.get("kind")) {
            case "fifo" -> builder.setMessageGroup("group-" + number % 3);
            case "delay", "recall" -> builder.setDeliveryTimestamp(
                System.currentTimeMillis() + Long.parseLong(OPTIONS.get("delay-ms")));
            default -> { }
        }
        return builder.build();
    }

    private static void send() throws Exception {
        // Asked before it has ended a transaction, it does not know.
        Producer producer = producer(TransactionResolution.UNKNOWN);
        String kind = OPTIONS.get("kind");
        for (int number = 0; number < count(); number++) {
            Message message = message(number);
            SendReceipt receipt;
            if (kind.equals("commit") || kind.equals("rollback") || kind.equals("orphan")) {
                Transaction transaction = producer.beginTransaction();
                receipt = producer.send(message, transaction);
                if (kind.equals("commit")) {
                    transaction.commit();
                } else if (kind.equals("rollback")) {
                    transaction.rollback();
                }
            } else {
                receipt = producer.send(message);
            }
            String body = quoted(text(message.getBody()));
            tell("sent", "body", body, "id", quoted(receipt.getMessageId().toString()));
            if (kind.equals("recall")) {
                producer.recallMessage(OPTIONS.get("topic"), receipt.getRecallHandle());
                tell("recalled", "body", body);
            }
        }
        tell("summary", "count", String.valueOf(count()));
        if (!kind.equals("orphan")) {
            producer.close();
        }
    }

    private static void check() throws Exception {
        Producer producer = producer(TransactionResolution.COMMIT);
        tell("ready");
        Thread.sleep((long) (Double.parseDouble(OPTIONS.get("timeout")) * 1000));
        producer.close();
    }

    private static FilterExpression expression() {
        String sql = OPTIONS.get("sql");
        return sql.isEmpty() ? FilterExpression.SUB_ALL : new FilterExpression(sql, FilterExpressionType.SQL92);
    }

    private static void received(MessageView message) {
        tell("received", "body", quoted(text(message.getBody())),
            "attempt", String.valueOf(message.getDeliveryAttempt()),
            "tag", quoted(message.getTag().orElse("")), "group", quoted(message.getMessageGroup().orElse("")),
            "properties", "{\"n\":" + quoted(message.getProperties().getOrDefault("n", "")) + "}");
    }

    private static void simple() throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(OPTIONS.get("group"))
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(OPTIONS.get("topic"), expression()))
            .build();
        tell("ready");
        int got = 0;
        long deadline = deadline();
        while (got < count() && System.nanoTime() < deadline) {
            List<MessageView> messages = List.of();
            try {
                messages = consumer.receive(32, Duration.ofSeconds(20));
            } catch (Exception error) {
                tell("failed", "reason", quoted(String.valueOf(error)));
                Thread.sleep(500);
            }
            for (MessageView message : messages) {
                received(message);
                consumer.ack(message);
                got++;
            }
        }
        tell("summary", "count", String.valueOf(got));
        consumer.close();
    }

    private static void push() throws Exception {
        var got = new AtomicInteger();
        String fail = OPTIONS.get("fail");
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(OPTIONS.get("group"))
            .setSubscriptionExpressions(Map.of(OPTIONS.get("topic"), expression()))
            .setMessageListener(message -> {
                received(message);
                got.incrementAndGet();
                boolean fails = !fail.isEmpty() && text(message.getBody()).startsWith(fail);
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        tell("ready");
        long deadline = deadline();
        while (got.get() < count() && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        Thread.sleep(1000);
        tell("summary", "count", String.valueOf(got.get()));
        consumer.close();
    }
}
