import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The reads that rocketmq-exporter makes, with the same library: name server, a topic, and a group of it are the
 * arguments. Prints a line for each figure, its name and its value with a tab between them.
 */
public final class ExporterReads {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        String group = arguments[2];
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(arguments[0]);
        admin.start();
        try {
            Map<String, Object> figures = new TreeMap<>();
            figures.put("topicIsListed", admin.fetchAllTopicList().getTopicList().contains(topic));
            long messages = 0;
            for (TopicOffset offsets : admin.examineTopicStats(topic).getOffsetTable().values()) {
                messages += offsets.getMaxOffset() - offsets.getMinOffset();
            }
            figures.put("messages", messages);
            figures.put("groupIsListed", admin.queryTopicConsumeByWho(topic).getGroupList().contains(group));
            ConsumeStats stats = admin.examineConsumeStats(group, topic);
            long consumed = 0;
            for (Map.Entry<MessageQueue, OffsetWrapper> row : stats.getOffsetTable().entrySet()) {
                consumed += row.getValue().getConsumerOffset();
            }
            figures.put("consumed", consumed);
            figures.put("behind", stats.computeTotalDiff());
            ClusterInfo cluster = admin.examineBrokerClusterInfo();
            for (BrokerData broker : cluster.getBrokerAddrTable().values()) {
                String address = broker.getBrokerAddrs().get(0L);
                for (Map.Entry<String, String> row : admin.fetchBrokerRuntimeStats(address).getTable().entrySet()) {
                    figures.put("runtime." + row.getKey(), row.getValue());
                }
                figures.put("stats", admin.viewBrokerStatsData(address, "TOPIC_PUT_NUMS", topic).getStatsDay().getSum());
            }
            figures.forEach((name, value) -> System.out.println(name + "\t" + value));
        } finally {
            admin.shutdown();
        }
        System.exit(0);
    }
}
