"""Messages for any time, by a wheel on disk (RocketMQ: ``TimerMessageStore``).

::

    send ──> rmq_sys_wheel_timer, queue 0      the durable log of all timed messages
               │ take in
               v
             timerlog/    52 bytes per message ──chain──┐
             timerwheel   per second: the newest of its chain
               │ its second comes
               v
             orders, queue 5

Memory does not grow with the messages that wait: what is kept of them is on disk, and taking one in writes one
record and one slot, however many there are. Read in this order: ``times``, ``timerlog``, ``wheel``, ``check``,
``recovery``, ``progress``, ``enqueue``, ``slot``, ``service``, ``timers``, ``recall``, ``examine``.
"""
