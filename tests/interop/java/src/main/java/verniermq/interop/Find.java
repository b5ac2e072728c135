package verniermq.interop;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Looks messages up by key, each in a query of its own, and the last of a topic by its unique key as well. What to
 * look for comes as {@code topic:first:end:step,…}, in numbers of messages.
 */
final class Find {
    static int run(Options options, JsonLines out) throws Exception {
        DefaultMQProducer client = new DefaultMQProducer("seekers");
        client.setNamesrvAddr(options.text("namesrv"));
        client.start();
        for (String range : options.text("find").split(",")) {
            String[] parts = range.split(":");
            findAll(client, parts[0], Integer.parseInt(parts[1]), Integer.parseInt(parts[2]),
                Integer.parseInt(parts[3]), out);
        }
        Shutdown.close(client::shutdown);
        return 0;
    }

    private static void findAll(DefaultMQProducer client, String topic, int first, int end, int step, JsonLines out)
        throws Exception {
        MessageExt last = null;
        for (int index = first; index < end; index += step) {
            List<MessageExt> found = find(client, topic, Sample.key(index));
            boolean bodyOk = true;
            for (MessageExt message : found) {
                bodyOk &= Arrays.equals(Sample.body(index), message.getBody());
                last = message;
            }
            out.write("found", "topic", topic, "index", index, "count", found.size(), "bodyOk", bodyOk);
        }
        MessageExt viewed = client.viewMessage(topic, last.getMsgId());
        out.write("viewed", "msgId", last.getMsgId(), "same", Arrays.equals(last.getBody(), viewed.getBody()));
    }

    private static List<MessageExt> find(DefaultMQProducer client, String topic, String key) throws Exception {
        try {
            return client.queryMessage(topic, key, 32, 0, Long.MAX_VALUE).getMessageList();
        } catch (MQClientException error) {
            return Collections.emptyList(); // which is how the client says that there is none
        }
    }

    private Find() {
    }
}
