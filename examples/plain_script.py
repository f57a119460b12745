"""Write and read a buffer: the shortest whole program.

python examples/plain_script.py file:///tmp/clicks
"""

from __future__ import annotations

import sys

import forebay


def main(url: str) -> None:
    with forebay.Producer(url) as producer:
        handle = producer.produce([b'{"page": "/"}', b'{"page": "/cart"}'], metadata=b"svc=web")
        producer.produce(b'{"page": "/checkout"}')
        handle.result(timeout=30)  # durable: whatever happens now, it will be read
    # Leaving the block made the rest durable too.

    with forebay.Consumer(url) as consumer:
        for batch in consumer:
            for entry in batch.entries:
                print(batch.sequence, entry.decode())
            consumer.ack_through(batch.sequence)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
