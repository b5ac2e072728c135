package verniermq.interop.spring;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalRequestCallback;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/**
 * What rocketmq-spring offers, each once: convert and send, tags, order, delay, a transaction, request and reply.
 * Options are Spring's ({@code --rocketmq.name-server=…}); each line of standard output is a JSON object. It ends with
 * SIGTERM.
 */
@SpringBootApplication
public class Main {
    private static PrintStream lines;

    static synchronized void write(String event, String what) {
        lines.println("{\"event\":\"" + event + "\",\"what\":\"" + what.replace("\"", "'") + "\"}");
    }

    public static void main(String[] arguments) throws Exception {
        lines = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8.name());
        System.setOut(System.err);
        SpringApplication application = new SpringApplication(Main.class);
        application.setLogStartupInfo(false);
        try (var context = application.run(arguments)) {
            RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
            write("started", "");
            template.convertAndSend("spring-plain:good", "plain");
            template.convertAndSend("spring-plain:bad", "another tag");
            for (int number = 0; number < 5; number++) {
                SendResult sent = template.syncSendOrderly("spring-orderly", "step " + number, "one key");
                write("sent", sent.getSendStatus().name());
            }
            template.syncSendDelayTimeSeconds("spring-plain:good", "delayed", 1);
            for (String outcome : new String[] {"commit", "rollback"}) {
                Message<String> message = MessageBuilder.withPayload(outcome).setHeader("TAGS", "good").build();
                write("sent", template.sendMessageInTransaction("spring-plain:good", message, outcome).getSendStatus().name());
            }
            ask(template);
            Thread.currentThread().join();
        }
    }

    /** Not the synchronous form: the client that this version of rocketmq-spring brings ends its wait at the send's answer. */
    private static void ask(RocketMQTemplate template) {
        template.sendAndReceive("spring-question", "question", new RocketMQLocalRequestCallback<String>() {
            @Override
            public void onSuccess(String answer) {
                write("answered", answer);
            }

            @Override
            public void onException(Throwable error) {
                ask(template);
            }
        });
    }

    @Component
    @RocketMQMessageListener(topic = "spring-plain", consumerGroup = "spring-plain", selectorExpression = "good")
    static class Plain implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            write("plain", body);
        }
    }

    @Component
    @RocketMQMessageListener(
        topic = "spring-orderly", consumerGroup = "spring-orderly", consumeMode = ConsumeMode.ORDERLY)
    static class Orderly implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            write("orderly", body);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "spring-question", consumerGroup = "spring-question")
    static class Replying implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String body) {
            return "answer to " + body;
        }
    }

    @RocketMQTransactionListener
    static class Deciding implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object outcome) {
            boolean commits = "commit".equals(outcome);
            return commits ? RocketMQLocalTransactionState.COMMIT : RocketMQLocalTransactionState.ROLLBACK;
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            return RocketMQLocalTransactionState.UNKNOWN;
        }
    }
}
