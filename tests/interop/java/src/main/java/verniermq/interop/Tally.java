package verniermq.interop;

import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;

/** What many threads did together: how often it worked, how often not, and how fast in a stretch of time. */
final class Tally {
    private final LongAdder done = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final AtomicReference<Throwable> firstError = new AtomicReference<>();

    void done(int count) {
        done.add(count);
    }

    void failed(Throwable error) {
        failed.increment();
        firstError.compareAndSet(null, error);
    }

    long done() {
        return done.sum();
    }

    long failures() {
        return failed.sum();
    }

    /** @return how many were done in a second, measured over {@code millis} that begin in {@code warmUpMillis} */
    double rate(long warmUpMillis, long millis) throws InterruptedException {
        Thread.sleep(warmUpMillis);
        long before = done();
        long started = System.nanoTime();
        Thread.sleep(millis);
        return (done() - before) * 1e9 / (System.nanoTime() - started);
    }

    void report(JsonLines out, double rate) {
        out.write("result", "rate", rate, "done", done(), "failed", failures(), "error", firstError.get());
    }
}
