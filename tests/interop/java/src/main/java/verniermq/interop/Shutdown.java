package verniermq.interop;

import java.util.concurrent.atomic.AtomicBoolean;

/** Closing clients properly, so that offsets are stored and the broker is told: at the end, and what SIGTERM does. */
final class Shutdown {
    /** A thread of the 5.x client that waits for events, three seconds at a time, and is waited for by its shutdown. */
    private static final String SLEEPER = "NettyEventExecutor";

    /** Closes clients without the wait for a thread that has nothing to do and would only notice seconds later. */
    static void close(Runnable... closings) {
        Thread waker = new Thread(() -> {
            try {
                while (true) {
                    Thread.sleep(50);
                    Thread.getAllStackTraces().keySet().stream()
                        .filter(thread -> thread.getName().equals(SLEEPER)).forEach(Thread::interrupt);
                }
            } catch (InterruptedException everythingClosed) {
                Thread.currentThread().interrupt();
            }
        });
        waker.setDaemon(true);
        waker.start();
        for (Runnable closing : closings) {
            closing.run();
        }
        waker.interrupt();
    }

    /**
     * Clients may be closed twice, so the hook also runs on an ordinary exit without harm.
     *
     * @return a flag that becomes true when the process has been asked to stop
     */
    static AtomicBoolean onSignal(Runnable closing) {
        AtomicBoolean stopped = new AtomicBoolean();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped.set(true);
            close(closing);
        }));
        return stopped;
    }

    private Shutdown() {
    }
}
