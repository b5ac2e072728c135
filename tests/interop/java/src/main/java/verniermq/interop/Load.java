package verniermq.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;

/**
 * Measures one thing after the other in a virtual machine that stays warm: a line of tab-separated words in,
 * {@code measurement --name value …}, one line with event {@code result} or {@code failed} out. It ends with its input.
 */
final class Load {
    private static final Map<String, Main.Command> MEASUREMENTS = Map.of(
        "send", SendLoad::run,
        "async", AsyncLoad::run,
        "oneway", OnewayLoad::run,
        "consume", ConsumeLoad::run,
        "latency", LatencyLoad::run,
        "group-start", GroupBeside::start,
        "group-stop", GroupBeside::stop,
        "first-send", FirstSend::run);

    static int run(Options unused, JsonLines out) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            try {
                Options options = Options.parse(Arrays.copyOfRange(words, 1, words.length));
                MEASUREMENTS.get(words[0]).run(options, out);
            } catch (Exception error) {
                error.printStackTrace();
                out.write("failed", "error", error);
            }
        }
        return 0;
    }

    private Load() {
    }
}
