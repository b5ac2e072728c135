package verniermq.interop;

import java.util.Arrays;
import java.util.Map;

/** The driver's command line: {@code <subcommand> --name value …}. A new subcommand is one more line in the table. */
public final class Main {
    interface Command {
        /** @return the exit code */
        int run(Options options, JsonLines out) throws Exception;
    }

    private static final Map<String, Command> COMMANDS = Map.of(
        "produce", Produce::run,
        "consume", Consume::run,
        "store", Store::run,
        "transaction", Transaction::run,
        "pop", Pop::run,
        "request-reply", RequestReply::run,
        "delay", Delay::run,
        "retry", Retry::run,
        "orderly", Orderly::run,
        "bench", Bench::run);

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
