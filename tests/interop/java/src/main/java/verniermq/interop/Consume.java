package verniermq.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers of one group, from the first offset, until every expected message arrived or time is up. */
final class Consume {
    /** The exit code when the broker would not have the subscription. */
    private static final int REFUSED = 3;

    static int run(Options options, JsonLines out) throws Exception {
        String tags = options.text("tags", "*");
        Expectation expectation = new Expectation(options.number("start", 0), options.number("expect"), tags);
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        Shutdown.onSignal(() -> members.forEach(DefaultMQPushConsumer::shutdown));

        for (int number = 0; number < options.number("members", 1); number++) {
            String name = "member-" + number + "-" + ProcessHandle.current().pid();
            DefaultMQPushConsumer member = new DefaultMQPushConsumer(
                options.text("group"), Signing.hook(options), new AllocateMessageQueueAveragely());
            member.setNamesrvAddr(options.text("namesrv"));
            member.setInstanceName(name);
            member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            member.setAwaitTerminationMillisWhenShutdown(5000);
            // A rebalance at the moment of the first heartbeat leaves the broker with an older version of the
            // subscription, and an Apache broker then refuses to serve pulls until the next one, by default 30 s.
            member.setHeartbeatBrokerInterval(3000);
            member.subscribe(options.text("topic"), selector(options, tags));
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    report(message, name, out);
                    expectation.received(index(message));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            members.add(member);
        }
        for (DefaultMQPushConsumer member : members) {
            try {
                member.start();
            } catch (MQClientException refused) {
                out.write("refused", "code", refused.getResponseCode(), "error", refused.getMessage());
                return REFUSED;
            }
        }
        out.write("started", "members", members.size());

        boolean complete = expectation.await(options.number("timeout") * 1000L);
        // What arrives now is surplus; a test wants to see it.
        Thread.sleep(options.number("linger-ms", 500));
        Shutdown.close(() -> members.forEach(DefaultMQPushConsumer::shutdown));
        expectation.summarise(out);
        return complete ? 0 : 1;
    }

    private static MessageSelector selector(Options options, String tags) {
        String sql = options.text("sql", "");
        return sql.isEmpty() ? MessageSelector.byTag(tags) : MessageSelector.bySql(sql);
    }

    static int index(MessageExt message) {
        String index = message.getUserProperty("index");
        return index == null ? -1 : Integer.parseInt(index);
    }

    static void report(MessageExt message, String member, JsonLines out) {
        int index = index(message);
        out.write("received", "index", index, "tag", message.getTags(), "key", message.getKeys(),
            "textOk", Sample.text(index).equals(message.getUserProperty("text")),
            "bodyOk", index >= 0 && Arrays.equals(Sample.body(index), message.getBody()),
            "msgId", message.getMsgId(), "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
            "reconsumeTimes", message.getReconsumeTimes(), "member", member,
            "waited", message.getStoreTimestamp() - message.getBornTimestamp());
    }

    private Consume() {
    }
}
