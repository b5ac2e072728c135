"""Read a topic as a Spark table: ``pip install 'verniermq[spark]'`` first; it brings a Java too."""

import os

from verniermq.client.sync import Message, Producer
from verniermq.contrib.spark import session

TOPIC = "examples-sales"
namesrv = os.environ.get("VERNIERMQ_NAMESRV", "127.0.0.1:9876")

with Producer("examples-tills", namesrv=namesrv) as producer:
    for number in range(10):
        producer.send(Message(TOPIC, b"%d" % number, tags="refund" if number % 5 == 0 else "sale"))

spark = session()
sales = spark.read.format("verniermq").option("nameServer", namesrv).option("subscribe", TOPIC).load()
sales.groupBy("tags").count().orderBy("tags").show()
