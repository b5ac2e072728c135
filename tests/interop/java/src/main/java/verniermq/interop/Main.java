package verniermq.interop;

import java.util.Arrays;
import java.util.Map;

/** The driver's command line: {@code <subcommand> --name value …}. A new subcommand is one more line in the table. */
public final class Main {
    interface Command {
        /** @return the exit code */
        int run(Options options, JsonLines out) throws Exception;
    }

    private static final Map<String, Command> COMMANDS = Map.ofEntries(
        Map.entry("produce", Produce::run),
        Map.entry("consume", Consume::run),
        Map.entry("store", Store::run),
        Map.entry("transaction", Transaction::run),
        Map.entry("pop", Pop::run),
        Map.entry("request-reply", RequestReply::run),
        Map.entry("delay", Delay::run),
        Map.entry("retry", Retry::run),
        Map.entry("orderly", Orderly::run),
        Map.entry("bench", Bench::run),
        Map.entry("load", Load::run));

    public static void main(String[] args) throws Exception {
        Command command = args.length == 0 ? null : COMMANDS.get(args[0]);
        if (command == null) {
            System.err.println("expected a subcommand, one of " + COMMANDS.keySet());
            System.exit(2);
        }
        Options options = Options.parse(Arrays.copyOfRange(args, 1, args.length));
        // The client has threads that outlive it, so the exit has to be said.
        System.exit(command.run(options, JsonLines.takeStandardOutput()));
    }

    private Main() {
    }
}
