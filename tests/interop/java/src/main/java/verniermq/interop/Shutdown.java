package verniermq.interop;

import java.util.concurrent.atomic.AtomicBoolean;

/** What SIGTERM does: close the client properly, so that offsets are stored and the broker is told. */
final class Shutdown {
    /**
     * Clients may be closed twice, so the hook also runs on an ordinary exit without harm.
     *
     * @return a flag that becomes true when the process has been asked to stop
     */
    static AtomicBoolean onSignal(Runnable close) {
        AtomicBoolean stopped = new AtomicBoolean();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped.set(true);
            close.run();
        }));
        return stopped;
    }

    private Shutdown() {
    }
}
