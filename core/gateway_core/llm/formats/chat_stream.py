"""Streams of Chat Completions (contract §7.2)."""

from collections.abc import Collection
from typing import Any

import orjson

from gateway_core.llm.formats.answers import read_reason
from gateway_core.llm.formats.calls import Format, as_objects
from gateway_core.llm.formats.chat_message import DeltaReader
from gateway_core.llm.formats.estimates import join_usages
from gateway_core.llm.formats.sse import (
    DONE,
    StreamBroken,
    StreamFailed,
    data_frame,
)
from gateway_core.llm.formats.streams import (
    NEVER,
    SPACES,
    LlmStream,
    add_sent,
    parse_usual,
    write_field,
)
from gateway_core.llm.formats.usage import fill_chat_usage, to_chat_usage
from gateway_core.llm.formats.writers import ChatWriter

_DONE_FRAME = DONE.removesuffix(b"\n\n")
_OBJECT = "chat.completion.chunk"
_MOST_LESSONS = 4
"""Chunks from which the bytes around the text are learned; some providers vary them each time."""


class ChatStream(LlmStream):
    """A chat stream (§7.2). The usage comes last, or not at all where the client did not ask.

    `functions` are the names of those that the model may call.
    """

    def __init__(
        self, model_id: str, functions: Collection[str] = (), *, include_usage: bool
    ) -> None:
        super().__init__(Format.CHAT, ChatWriter())
        self._model_id = model_id
        self._include_usage = include_usage
        self._deltas = DeltaReader(functions)
        self._head: dict[str, Any] = {}
        """The fields of the last parsed chunk beside its choices."""
        self._shown_usage: Any = None
        """The usage as the client sees it."""
        self._model = NEVER
        self._public_model = NEVER
        self._null_usage = self._unfinished = self._content = NEVER
        # the bytes around the text of a chunk, of the provider and for the client
        self._before = self._after = b""
        self._public_before = self._public_after = b""
        self._lessons = _MOST_LESSONS

    def _learn(self, frame: bytes, model: Any) -> None:
        """Note how the provider writes its fields: the model, and whether spaces separate them."""
        for space in SPACES:
            written = write_field(b"model", space, model)
            if written in frame:
                self._model = written
                self._public_model = write_field(b"model", space, self._model_id)
                self._null_usage = b"," + space + write_field(b"usage", space, None)
                self._unfinished = write_field(b"finish_reason", space, None)
                self._content = b'"content":%b"' % space

    def _learn_text(self, frame: bytes, passed: bytes) -> None:
        """Note the bytes around the text of a usual chunk, as it came and as it was passed."""
        self._lessons -= 1
        start = frame.find(self._content) + len(self._content)
        end = frame.find(b'"', start)
        if start < len(self._content) or frame[end - 1 : end] == b"\\":
            return
        self._before, self._after = frame[:start], frame[end:-2]
        public_start = passed.find(self._content) + len(self._content)
        self._public_before = passed[:public_start]
        self._public_after = passed[public_start + end - start :]

    def _pass(self, block: bytes) -> bytes:
        """Return the client's bytes for whole frames: runs of usual ones at once, others singly."""
        frames = block.split(b"\n\n")
        # what follows the last blank line
        frames.pop()
        # of few frames each end is looked at
        sent, place, is_compared = b"", 0, len(frames) < 4
        try:
            while place < len(frames) and not self.ended:
                texts: list[bytes] = []
                if self._before and not (self._joiner.is_waiting or self.is_done):
                    # once for a block: repeated after each unusual frame it would be quadratic
                    if not is_compared:
                        # the last ones of a stream are the finish reason, the usage and [DONE]
                        last = -3 if frames[-1] == _DONE_FRAME else None
                        texts = self._cut_all(frames[place:last])
                        is_compared = True
                    texts = texts or self._cut_run(frames, place)
                passed = self._pass_texts(texts) if texts else b""
                if passed:
                    sent += passed
                    place += len(texts)
                elif not self._lessons and place + 1 < len(frames):
                    # the bytes around the texts vary
                    sent += super()._pass(b"\n\n".join(frames[place:]) + b"\n\n")
                    break
                else:
                    sent += self._pass_single(frames[place] + b"\n\n")
                    place += 1
        except (StreamFailed, orjson.JSONEncodeError) as error:
            raise add_sent(error, sent) from error
        return sent

    def _cut_all(self, frames: list[bytes]) -> list[bytes]:
        """Return the texts of frames that differ in nothing else from the learned one, or none."""
        before, after = self._before, self._after
        start, end = len(before), -len(after)
        texts = [frame[start:end] for frame in frames]
        # one comparison costs less than one of both ends of each frame
        between = after + b"\n\n" + before
        is_same = before + between.join(texts) + after == b"\n\n".join(frames)
        return texts if is_same else []

    def _cut_run(self, frames: list[bytes], place: int) -> list[bytes]:
        """Return the texts of the frames from `place` on, up to one that differs in more."""
        before, after = self._before, self._after
        start, end = len(before), -len(after)
        texts: list[bytes] = []
        for index in range(place, len(frames)):
            frame = frames[index]
            if not (frame.startswith(before) and frame.endswith(after, start)):
                break
            texts.append(frame[start:end])
        return texts

    def _pass_texts(self, texts: list[bytes]) -> bytes:
        """Return the client's bytes for usual frames with these texts; none if one is damaged."""
        # a space between keeps a text invalid that ends within a character or an escape
        joined = b" ".join(texts)
        try:
            orjson.loads(b'"%b"' % joined)
        except orjson.JSONDecodeError:
            return b""
        self.text_bytes += len(joined) - len(texts) + 1
        between = self._public_after + self._public_before
        return self._public_before + between.join(texts) + self._public_after

    def _pass_usual(self, block: bytes) -> bytes | None:
        lines = block.count(b"\n")
        frames = lines >> 1
        if (
            block.count(self._model) != frames
            or lines & 1
            or not block.startswith(b"data: {")
            or (frames != 1 and block.count(b"}\n\ndata: {") != frames - 1)
            or block.count(self._unfinished) != frames
            or block.count(b'"finish_reason"') != frames
            or block.count(b'"error"')
        ):
            return None
        usages = block.count(b'"usage"')
        if usages and (usages != frames or block.count(self._null_usage) != frames):
            return None
        documents = parse_usual(block[len(b"data: ") : -2].split(b"\n\ndata: "))
        size = self._deltas.read_usual(documents) if documents else None
        if size is None:
            return None
        for chunk in documents:
            self._ends.note(chunk["choices"])
        self.text_bytes += size
        passed = block.replace(self._model, self._public_model)
        if usages:
            if not self._include_usage:
                passed = passed.replace(self._null_usage, b"")
        elif self._include_usage:
            passed = passed.replace(b"}\n\n", b',"usage":null}\n\n')
        if self._lessons and frames == 1:
            self._learn_text(block, passed)
        return passed

    def _pass_document(self, document: dict[str, Any], frame: bytes) -> bytes:
        if document.get("object", _OBJECT) != _OBJECT:
            document["object"] = _OBJECT
        elif not frame.count(self._model):
            self._learn(frame, document.get("model"))
        has_usage = self._note_usage(document)
        if not isinstance(document.get("choices"), list):
            return b""
        choices = as_objects(document["choices"])
        if not choices and has_usage:
            self._head = {**self._head, **document}
            return b""
        self._head = document
        document["model"] = self._model_id
        self.text_bytes += self._deltas.read(choices)
        self._note_ends(choices)
        for choice in choices:
            choice.pop("usage", None)
            choice["finish_reason"] = read_reason(choice.get("finish_reason"))
        if self._include_usage:
            document["usage"] = None
        else:
            document.pop("usage", None)
        return data_frame(document)

    def _note_usage(self, document: dict[str, Any]) -> bool:
        usage = fill_chat_usage(document)
        if usage is None:
            return False
        joined = join_usages(self.usage, usage)
        self._shown_usage = document["usage"] if joined is usage else to_chat_usage(joined)
        self.usage = joined
        return True

    def _pass_done(self) -> bytes:
        """Return the reasons that the provider has not given, the usage, and [DONE]."""
        if not self._ends.has_any:
            raise StreamBroken("The provider's stream has no choice.")
        self.ended = True
        head = {name: value for name, value in self._head.items() if name != "usage"}
        head["model"] = self._model_id
        ends: list[dict[str, Any]] = [
            {"index": index, "delta": {}, "finish_reason": reason}
            for index, reason in self._ends.list_open()
        ]
        frames = []
        if ends:
            extra = {"usage": None} if self._include_usage else {}
            frames.append(data_frame({**head, "choices": ends, **extra}))
        if self._include_usage and self._shown_usage is not None:
            frames.append(data_frame({**head, "choices": [], "usage": self._shown_usage}))
        return b"".join((*frames, DONE))

    def _complete(self) -> bytes:
        if self.ended:
            return b""
        if not (self.is_done or self._ends.are_all):
            raise StreamBroken("The provider's stream ended early.")
        return self._pass_done()
