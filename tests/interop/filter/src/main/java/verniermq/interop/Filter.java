package verniermq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/**
 * Answers each line of standard input with one line, by Apache's own filter.
 *
 * <pre>
 * {"expression": "a > 3", "properties": {"a": "4"}}   ->  true | false | null | error | parse-error
 * {"tags": "a || b"}                                  ->  * | the hashes in order, [97, 98] | parse-error
 * </pre>
 */
public final class Filter {
    private Filter() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            JSONObject question = JSON.parseObject(line);
            answers.println(question.containsKey("tags") ? tags(question.getString("tags")) : sql(question));
        }
        answers.flush();
    }

    private static String sql(JSONObject question) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(question.getString("expression"));
        } catch (MQFilterException refused) {
            return "parse-error";
        }
        try {
            return String.valueOf(compiled.evaluate(new Properties(question.getJSONObject("properties"))));
        } catch (Throwable failure) {
            return "error";
        }
    }

    private static String tags(String expression) {
        try {
            SubscriptionData subscription = FilterAPI.buildSubscriptionData("topic", expression);
            boolean all = subscription.getSubString().equals(SubscriptionData.SUB_ALL);
            return all ? "*" : new TreeSet<>(subscription.getCodeSet()).toString();
        } catch (Exception refused) {
            return "parse-error";
        }
    }

    private static final class Properties implements EvaluationContext {
        private final Map<String, Object> values;

        Properties(JSONObject values) {
            this.values = new HashMap<>(values);
        }

        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return values;
        }
    }
}
