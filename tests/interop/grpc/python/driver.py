"""The official Python client, driven from the command line; see ../README.md for the commands."""

import argparse
import json
import os
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("--endpoint")
parser.add_argument("--topic")
parser.add_argument("--group", default="g")
parser.add_argument("--count", type=int, default=1)
parser.add_argument("--kind", default="normal")
parser.add_argument("--prefix", default="m")
parser.add_argument("--sql", default="")
parser.add_argument("--fail", default="")
parser.add_argument("--timeout", type=float, default=60)
parser.add_argument("--delay-ms", type=int, default=3000)
parser.add_argument("--tls", default="false")
parser.add_argument("--key", default="")
parser.add_argument("--secret", default="")
options = parser.parse_args()
tls = options.tls == "true"
lock = threading.Lock()


def tell(event, **fields):
    with lock:
        print(json.dumps({"event": event, **fields}), flush=True)


def configuration():
    return ClientConfiguration(options.endpoint, Credentials(options.key, options.secret))


def make(number):
    message = Message()
    message.topic = options.topic
    message.body = f"{options.prefix}-{number}".encode()
    message.tag = "even" if number % 2 == 0 else "odd"
    message.keys = f"key-{number}"
    message.add_property("n", str(number))
    if options.kind == "fifo":
        message.message_group = f"group-{number % 3}"
    if options.kind in ("delay", "recall"):
        message.delivery_timestamp = int(time.time()) + options.delay_ms // 1000
    return message


class Checker(TransactionChecker):
    def __init__(self, resolution):
        self.resolution = resolution

    def check(self, message):
        tell("checked", body=message.body.decode())
        return self.resolution


def send():
    # Asked before it has ended a transaction, it does not know.
    checker = Checker(TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)
    producer = Producer(configuration(), (options.topic,), checker=checker, tls_enable=tls)
    producer.startup()
    for number in range(options.count):
        message = make(number)
        if options.kind in ("commit", "rollback", "orphan"):
            transaction = producer.begin_transaction()
            receipt = producer.send(message, transaction)
            if options.kind == "commit":
                transaction.commit()
            elif options.kind == "rollback":
                transaction.rollback()
        else:
            receipt = producer.send(message)
        tell("sent", body=message.body.decode(), id=receipt.message_id)
        if options.kind == "recall":
            producer.recall_message(options.topic, receipt.recall_handle)
            tell("recalled", body=message.body.decode())
    tell("summary", count=options.count)
    if options.kind == "orphan":
        os._exit(0)  # as if it were killed
    producer.shutdown()


def check():
    checker = Checker(TransactionResolution.COMMIT)
    producer = Producer(configuration(), (options.topic,), checker=checker, tls_enable=tls)
    producer.startup()
    tell("ready")
    time.sleep(options.timeout)
    producer.shutdown()


def received(message):
    tell(
        "received",
        body=message.body.decode(),
        attempt=message.delivery_attempt,
        tag=message.tag,
        group=message.message_group or "",
        properties=message.properties,
    )


def expression():
    from rocketmq.grpc_protocol import FilterType

    return FilterExpression(options.sql, FilterType.SQL) if options.sql else FilterExpression()


def simple():
    consumer = SimpleConsumer(configuration(), options.group, {options.topic: expression()}, 5, tls_enable=tls)
    consumer.startup()
    tell("ready")
    count, deadline = 0, time.monotonic() + options.timeout
    while count < options.count and time.monotonic() < deadline:
        try:
            messages = consumer.receive(32, 20)
        except Exception as error:
            tell("failed", reason=str(error))
            time.sleep(0.5)
            continue
        for message in messages or ():
            received(message)
            consumer.ack(message)
            count += 1
    tell("summary", count=count)
    consumer.shutdown()


def push():
    count, done = 0, threading.Event()

    class Listener(MessageListener):
        def consume(self, message):
            nonlocal count
            received(message)
            with lock:
                count += 1
                if count >= options.count:
                    done.set()
            fails = options.fail and message.body.decode().startswith(options.fail)
            return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    consumer = PushConsumer(configuration(), options.group, Listener(), {options.topic: expression()}, tls_enable=tls)
    consumer.startup()
    tell("ready")
    done.wait(options.timeout)
    time.sleep(1)
    tell("summary", count=count)
    consumer.shutdown()


{"send": send, "check": check, "simple": simple, "push": push}[options.command]()
os._exit(0)  # its threads take their time
