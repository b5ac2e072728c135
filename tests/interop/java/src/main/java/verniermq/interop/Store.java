package verniermq.interop;

/** What the exchange of stores needs: {@code store --do write}, and {@code inspect}, which reads and finds messages. */
final class Store {
    static int run(Options options, JsonLines out) throws Exception {
        switch (options.text("do")) {
            case "write":
                return Write.run(options, out);
            case "inspect":
                return Read.run(options, out) + Find.run(options, out);
            default:
                throw new IllegalArgumentException("--do is write or inspect, not " + options.text("do"));
        }
    }

    private Store() {
    }
}
