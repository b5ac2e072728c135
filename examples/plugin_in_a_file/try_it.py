"""Send one message that the plugin takes and one that it refuses."""

from verniermq.client.sync import Message, Producer
from verniermq.kernel import VernierMQError

with Producer("examples-sellers") as producer:
    for price in ("250", "5000"):
        try:
            result = producer.send(Message("examples-prices", b"a chair", properties={"price": price}))
            print(f"{price}: {result.status.name}")
        except VernierMQError as error:
            print(f"{price}: {error}")
