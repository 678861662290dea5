"""TCP connections over one pair of pipes: a port of a job's node, reachable where the user is.

    agent.pyz forward PORT          on the node: connects to PORT of this node for each connection of the other side

Both sides speak frames: kind, number of the connection, length, data. A side sends at most `WINDOW` bytes of a
connection before the other has passed them on, so that one slow reader does not stop the others.
"""

import asyncio
import errno
import os
import struct
import sys
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple

from ..kernel import processes

_HEADER = struct.Struct("!BII")
READY, OPEN, DATA, PASSED_ON, END, CLOSE = range(6)
WINDOW = 256 * 1024
_CHUNK = 32 * 1024
#: A node may not know its own name, and ask a server that does not answer.
_NAME_LOOKUP_S = 3.0
_Streams = Tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[_Streams]]


class _Connection:
    def __init__(self) -> None:
        self.incoming: "asyncio.Queue[Optional[bytes]]" = asyncio.Queue()
        self.unconfirmed = 0
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.task: "Optional[asyncio.Task[None]]" = None


class Multiplexer:
    """Connections over one channel. `connect` makes the connection that the other side asks for; `failed` hears why
    the other side could not."""

    def __init__(
        self,
        channel: _Streams,
        connect: Optional[Connect] = None,
        failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._reader, self._writer = channel
        self._connect, self._failed = connect, failed
        self._connections: Dict[int, _Connection] = {}
        self._last = 0
        #: The other side has begun.
        self.ready = asyncio.Event()

    def begin(self) -> None:
        """Let the other side know that this one has begun."""
        self._send(READY, 0)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection of this side to its end."""
        self._last += 1
        number = self._last
        self._connections[number] = connection = _Connection()
        self._send(OPEN, number)
        await self._relay(number, connection, reader, writer)

    async def run(self) -> None:
        """Handle frames until the channel ends; then every connection is closed."""
        try:
            while True:
                kind, number, length = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                data = await self._reader.readexactly(length) if kind != PASSED_ON else b""
                self._handle(kind, number, length, data)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for connection in self._connections.values():
                connection.may_send.set()
                connection.incoming.put_nowait(None)
                if connection.task is not None:
                    connection.task.cancel()

    def _handle(self, kind: int, number: int, length: int, data: bytes) -> None:
        if kind == READY:
            self.ready.set()
        elif kind == OPEN and self._connect is not None:
            self._connections[number] = connection = _Connection()
            connection.task = asyncio.ensure_future(self._open(number, connection, self._connect))
        elif number in self._connections:
            self._handle_one(self._connections[number], kind, length, data)

    def _handle_one(self, connection: _Connection, kind: int, length: int, data: bytes) -> None:
        if kind == DATA:
            connection.incoming.put_nowait(data)
        elif kind == PASSED_ON:
            connection.unconfirmed -= length
            if connection.unconfirmed < WINDOW:
                connection.may_send.set()
        elif kind == END:
            connection.incoming.put_nowait(b"")
        elif kind == CLOSE:
            if data:
                self._failed(data.decode("utf-8", "replace"))
            connection.may_send.set()
            connection.incoming.put_nowait(None)

    async def _open(self, number: int, connection: _Connection, connect: Connect) -> None:
        try:
            reader, writer = await connect()
        except OSError as error:
            reason = "nothing listens there" if error.errno == errno.ECONNREFUSED else str(error)
            self._send(CLOSE, number, reason.encode())
            del self._connections[number]
            return
        await self._relay(number, connection, reader, writer)

    async def _relay(
        self, number: int, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sending = asyncio.ensure_future(self._send_all(number, connection, reader))
        try:
            await self._receive_all(number, connection, writer)
            await sending
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            self._send(CLOSE, number)
            del self._connections[number]
            writer.close()

    async def _send_all(self, number: int, connection: _Connection, reader: asyncio.StreamReader) -> None:
        """What comes from the socket goes to the other side."""
        while True:
            try:
                data = await reader.read(_CHUNK)
            except ConnectionError:
                data = b""
            if not data:
                self._send(END, number)
                return
            connection.unconfirmed += len(data)
            if connection.unconfirmed >= WINDOW:
                connection.may_send.clear()
            self._send(DATA, number, data)
            await self._writer.drain()
            await connection.may_send.wait()

    async def _receive_all(self, number: int, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        """What comes from the other side goes to the socket, until that side has no more, or is gone."""
        while True:
            data = await connection.incoming.get()
            if data is None:
                raise ConnectionResetError
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            self._writer.write(_HEADER.pack(PASSED_ON, number, len(data)))

    def _send(self, kind: int, number: int, data: bytes = b"") -> None:
        self._writer.write(_HEADER.pack(kind, number, len(data)) + data)


async def _pipe_channel(read_from: Any, write_to: Any) -> _Streams:
    """Two pipes as the channel."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), read_from)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, write_to)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def main(argv: List[str]) -> int:
    asyncio.run(_serve(int(argv[0])))
    return 0


async def _serve(port: int) -> None:
    # Frames go to a copy of stdout, so that nothing else can write between them.
    write_to = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)

    async def connect() -> _Streams:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError as refused:  # a server may listen on the node's own address alone
            try:
                return await asyncio.wait_for(asyncio.open_connection(processes.host_name(), port), _NAME_LOOKUP_S)
            except (OSError, asyncio.TimeoutError):
                raise refused from None

    side = Multiplexer(await _pipe_channel(sys.stdin.buffer, write_to), connect)
    side.begin()
    await side.run()
