"""The models that a key may call, in the dialects of OpenAI and Google (contract §7.1, §8.7)."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.batch import ACTION
from gateway_core.api.errors import InvalidRequest
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.suggestions import refuse_model
from gateway_core.tasks.operations import CHAT

USUAL_PAGE = 50
LARGEST_PAGE = 1000


class ModelLists:
    """Lists of the present catalog, of what a policy allows."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog

    def list_models(self, policy: Policy) -> dict[str, Any]:
        """Return all models of OpenAI's surfaces."""
        found = self._find(policy, (CHAT.action, ACTION))
        return {"object": "list", "data": [_to_openai(found[name]) for name in sorted(found)]}

    def get_model(self, policy: Policy, model_id: str) -> dict[str, Any]:
        """Return one of them. NotFound."""
        actions = CHAT.action, ACTION
        found = self._find(policy, actions).get(model_id)
        if found is None:
            raise refuse_model(self._catalog(), model_id, policy.allows, actions)
        return _to_openai(found)

    def list_native(self, policy: Policy, query: bytes) -> dict[str, Any]:
        """Return a page of the language models. InvalidRequest for a bad parameter."""
        values = parse_qs(query.decode("latin-1"), keep_blank_values=True)
        size, after = _read_page(values)
        found = self._find(policy, (CHAT.action,))
        names = [name for name in sorted(found) if name > after]
        page = {"models": [_to_google(found[name]) for name in names[:size]]}
        if len(names) > size:
            return page | {"nextPageToken": _write_token(names[size - 1])}
        return page

    def get_native(self, policy: Policy, model_id: str) -> dict[str, Any]:
        """Return one language model. NotFound."""
        known_id = model_id.removeprefix("models/")
        found = self._find(policy, (CHAT.action,)).get(known_id)
        if found is None:
            raise refuse_model(self._catalog(), known_id, policy.allows, (CHAT.action,))
        return _to_google(found)

    def _find(self, policy: Policy, actions: Iterable[str]) -> dict[str, Model]:
        """Allowed models of the actions by id; of several of one id, the one that is called."""
        wanted, found = set(actions), dict[str, Model]()
        for (service, action), models in self._catalog().models.items():
            if action not in wanted:
                continue
            for model_id, model in models.items():
                if policy.find_refusal(service, model_id) is None:
                    found.setdefault(model_id, model)
        return found


def _to_openai(model: Model) -> dict[str, Any]:
    return {
        "id": model.model_id,
        "object": "model",
        "created": model.created,
        "owned_by": model.service,
    }


def _to_google(model: Model) -> dict[str, Any]:
    return {
        "name": f"models/{model.model_id}",
        "displayName": model.display_name,
        "description": model.display_name,
        "version": model.model_id,
        "inputTokenLimit": model.input_token_limit or model.output_token_limit,
        "outputTokenLimit": model.output_token_limit,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent"],
    }


def _read_page(values: dict[str, list[str]]) -> tuple[int, str]:
    """Size of the page, and the id after which it begins."""
    text = values.get("pageSize", [str(USUAL_PAGE)])[-1]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LARGEST_PAGE):
        raise InvalidRequest(f"pageSize must be 1 to {LARGEST_PAGE}.", param="pageSize")
    token = values.get("pageToken", [""])[-1]
    try:
        after = urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        after = ""
    if _write_token(after) != token:
        raise InvalidRequest("pageToken is not valid.", param="pageToken")
    return int(text), after


def _write_token(model_id: str) -> str:
    return urlsafe_b64encode(model_id.encode()).decode()
