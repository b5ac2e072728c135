import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.api.MessageTrack;

/**
 * What the pages of rocketmq-dashboard ask for, with the library that it uses: the cluster, topics, groups, clients, and
 * messages. The name server is the argument. Prints a line for each answer, its name and its value with a tab between them.
 */
public final class DashboardCalls {
    private static final String TOPIC = "shown";
    private static final String GROUP = "watched";
    private static final int COUNT = 5;

    private static final Map<String, Object> SHOWN = new LinkedHashMap<>();

    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(namesrv);
        admin.start();
        String broker = cluster(admin);
        create(admin, broker);

        DefaultMQProducer producer = new DefaultMQProducer("senders");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        SendResult sent = null;
        for (int number = 0; number < COUNT; number++) {
            sent = producer.send(new Message(TOPIC, "tag", "key-" + number, ("body " + number).getBytes()));
        }
        DefaultMQPushConsumer consumer = consumer(namesrv);

        topics(admin, broker);
        clients(admin, broker, sent.getMsgId());
        groups(admin, broker);
        messages(admin, sent.getMsgId());
        reset(admin);
        consumer.shutdown();
        producer.shutdown();
        delete(admin, broker, namesrv);
        SHOWN.forEach((name, value) -> System.out.println(name + "\t" + value));
        System.exit(0);
    }

    private static String cluster(DefaultMQAdminExt admin) throws Exception {
        ClusterInfo cluster = admin.examineBrokerClusterInfo();
        SHOWN.put("clusters", cluster.getClusterAddrTable().keySet());
        String broker = cluster.getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L);
        SHOWN.put("version", admin.fetchBrokerRuntimeStats(broker).getTable().get("brokerVersionDesc"));
        SHOWN.put("brokerName", admin.getBrokerConfig(broker).getProperty("brokerName"));
        return broker;
    }

    private static void create(DefaultMQAdminExt admin, String broker) throws Exception {
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(TOPIC, 1, 1, 6, 0));
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(GROUP);
        group.setRetryMaxTimes(3);
        admin.createAndUpdateSubscriptionGroupConfig(broker, group);
        SHOWN.put("queues", admin.examineTopicConfig(broker, TOPIC).getWriteQueueNums());
        SHOWN.put("retries", admin.examineSubscriptionGroupConfig(broker, GROUP).getRetryMaxTimes());
        SHOWN.put("topicIsThere", admin.getAllTopicConfig(broker, 10_000).getTopicConfigTable().containsKey(TOPIC));
        SHOWN.put("groupIsThere", admin.getAllSubscriptionGroup(broker, 10_000).getSubscriptionGroupTable().containsKey(GROUP));
    }

    private static DefaultMQPushConsumer consumer(String namesrv) throws Exception {
        Set<String> received = Collections.synchronizedSet(new HashSet<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(100);
        consumer.subscribe(TOPIC, "tag");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> received.add(message.getKeys()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int tries = 0; received.size() < COUNT && tries < 600; tries++) {
            Thread.sleep(100);
        }
        SHOWN.put("received", received.size());
        return consumer;
    }

    private static void topics(DefaultMQAdminExt admin, String broker) throws Exception {
        SHOWN.put("topicIsListed", admin.fetchAllTopicList().getTopicList().contains(TOPIC));
        SHOWN.put("route", admin.examineTopicRouteInfo(TOPIC).getBrokerDatas().get(0).getBrokerName());
        SHOWN.put("messages", admin.examineTopicStats(TOPIC).getOffsetTable().values().iterator().next().getMaxOffset());
        SHOWN.put("readers", admin.queryTopicConsumeByWho(TOPIC).getGroupList());
        SHOWN.put("sent", admin.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", TOPIC).getStatsDay().getSum() >= 0);
        String pulled = TOPIC + "@" + GROUP;
        SHOWN.put("pulled", admin.viewBrokerStatsData(broker, "GROUP_GET_NUMS", pulled).getStatsDay().getSum() >= 0);
        SHOWN.put("producers", admin.examineProducerConnectionInfo("senders", TOPIC).getConnectionSet().size());
    }

    private static void clients(DefaultMQAdminExt admin, String broker, String id) throws Exception {
        Connection client = admin.examineConsumerConnectionInfo(GROUP).getConnectionSet().iterator().next();
        SHOWN.put("language", client.getLanguage());
        SHOWN.put("clientsOfBroker", admin.examineConsumerConnectionInfo(GROUP, broker).getConnectionSet().size());
        SHOWN.put("running", admin.getConsumerRunningInfo(GROUP, client.getClientId(), true).getSubscriptionSet().size());
        SHOWN.put("directly", admin.consumeMessageDirectly(GROUP, client.getClientId(), TOPIC, id).getConsumeResult());
    }

    private static void groups(DefaultMQAdminExt admin, String broker) throws Exception {
        for (int tries = 0; admin.examineConsumeStats(GROUP, TOPIC).computeTotalDiff() > 0 && tries < 600; tries++) {
            Thread.sleep(100); // the consumer tells how far it is every moment
        }
        SHOWN.put("behind", admin.examineConsumeStats(GROUP).computeTotalDiff());
        SHOWN.put("behindAtBroker", admin.examineConsumeStats(broker, GROUP, null, 3000).computeTotalDiff());
    }

    private static void reset(DefaultMQAdminExt admin) throws Exception {
        SHOWN.put("reset", admin.resetOffsetByTimestamp(TOPIC, GROUP, 0, true).values());
        SHOWN.put("resetOld", admin.resetOffsetByTimestampOld(GROUP, TOPIC, 0, true).get(0).getRollbackOffset());
    }

    private static void messages(DefaultMQAdminExt admin, String id) throws Exception {
        long now = System.currentTimeMillis();
        List<MessageExt> found = admin.queryMessage(TOPIC, "key-4", 64, 0, now).getMessageList();
        SHOWN.put("found", new String(found.get(0).getBody()));
        MessageExt message = admin.viewMessage(TOPIC, id);
        SHOWN.put("viewed", new String(message.getBody()));
        for (MessageTrack track : admin.messageTrackDetail(message)) {
            SHOWN.put("track." + track.getConsumerGroup(), track.getTrackType());
        }
    }

    private static void delete(DefaultMQAdminExt admin, String broker, String namesrv) throws Exception {
        admin.deleteTopicInBroker(Collections.singleton(broker), TOPIC);
        admin.deleteTopicInNameServer(Collections.singleton(namesrv), TOPIC);
        admin.deleteSubscriptionGroup(broker, GROUP, true);
        SHOWN.put("topicIsGone", !admin.fetchAllTopicList().getTopicList().contains(TOPIC));
        SHOWN.put("groupIsGone", !admin.getAllSubscriptionGroup(broker, 10_000).getSubscriptionGroupTable().containsKey(GROUP));
    }
}
