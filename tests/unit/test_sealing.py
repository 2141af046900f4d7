"""Sealed texts: one for one content, good for its purpose and its key alone."""

from hypothesis import given
from hypothesis import strategies as st

from gateway_core.files.addresses import SivSealer

SEALER = SivSealer(b"k" * 32)


@given(st.binary(max_size=200))
def test_what_is_sealed_is_unsealed(content: bytes) -> None:
    text = SEALER.seal("a", content)
    assert text == SEALER.seal("a", content)
    assert SEALER.unseal("a", text) == content
    assert SEALER.unseal("b", text) is None
    assert SivSealer(b"l" * 32).unseal("a", text) is None
    assert SEALER.unseal("a", text + "=") is None
    assert SEALER.unseal("a", text[:-1]) is None


@given(st.text(max_size=100) | st.text("AB-_=", max_size=99))
def test_any_other_text_is_nothing(text: str) -> None:
    assert SEALER.unseal("a", text) is None


def test_a_text_of_any_length_is_refused() -> None:
    assert SEALER.unseal("a", "A" * 1_000_000) is None
