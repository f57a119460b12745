r"""Ship the lines of standard input to a buffer, as fast as they come and in order.

    tail -F /var/log/app.log | python examples/log_shipper.py s3://lake/logs
    printf 'one\ntwo\n' | python examples/log_shipper.py file:///tmp/logs

Lines are sent on within a tenth of a second. If the store is slow, reading waits: memory stays bounded.
"""

from __future__ import annotations

import os
import socket
import sys

import forebay

READ_BYTES = 1 << 20


def main(url: str) -> int:
    shipped = 0
    failed: list[forebay.ForebayError] = []

    def note_failure(handle: object) -> None:
        try:
            handle.result(timeout=0)  # type: ignore[attr-defined]
        except forebay.ForebayError as error:
            failed.append(error)

    with forebay.Producer(url) as producer:
        metadata = f"host={socket.gethostname()}".encode()
        rest = b""
        try:
            # One read takes whatever is there: a whole buffer when lines pour in, a single line when they trickle.
            while chunk := os.read(sys.stdin.fileno(), READ_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    producer.produce(lines, metadata).add_done_callback(note_failure)
                    shipped += len(lines)
        except KeyboardInterrupt:
            print("stopping; what was read is still stored", file=sys.stderr)
        if rest:
            producer.produce(rest, metadata).add_done_callback(note_failure)
            shipped += 1
        producer.flush().wait()
    for error in failed:
        print(f"not stored: {error}", file=sys.stderr)
    print(f"shipped {shipped} lines to {url}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
