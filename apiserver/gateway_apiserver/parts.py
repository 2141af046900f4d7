"""What the API is made of: its dependencies, which `compose` opens and tests replace by fakes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gateway_apiserver.settings import ApiSettings
from gateway_apiserver.tables import Tables
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.oidc import OidcClient
from gateway_core.admission.intake import Intake
from gateway_core.admission.live_calls import LiveCalls
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.redis_counters import Counters
from gateway_core.callbacks.orders import OrderLink
from gateway_core.files.addresses import Sealer
from gateway_core.files.fetching import Fetcher
from gateway_core.files.quota_counters import PartLedger, StorageLedger
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.llm.cache import AnswerCache
from gateway_core.llm.upstream import LlmUpstream
from gateway_core.mail import Mailer
from gateway_core.observability.tracing import NO_TRACER, Tracer
from gateway_core.providers.health import HealthTally
from gateway_core.providers.notices import NoticeSink
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import ModerationUpstream
from gateway_core.redis.transient import TransientStore
from gateway_core.storage.objects import ObjectStore
from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.middleware.observers import AccessLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParts:
    """Dependencies of the API.

    `answers` is None where no answers may be kept, `mailer` where no mail server is named,
    `notices` and `orders` where no operator is named, `intake` where only maintenance can stop
    creates; `usable_providers` are those the API calls.
    """

    settings: ApiSettings
    kube: KubernetesClient
    counters: Counters
    storage: StorageLedger
    parts: PartLedger
    store: ObjectStore
    fetcher: Fetcher
    documents: Fetcher
    oidc: OidcClient | None
    transient: TransientStore
    sealer: Sealer
    tables: Tables
    moderations: Providers[ModerationUpstream]
    llm_providers: Providers[LlmUpstream]
    rebuilder: Rebuilder
    calls: LiveCalls
    key_use: KeyUse
    answers: AnswerCache | None
    id_key: bytes
    peppers: Mapping[int, bytes]
    mailer: Mailer | None = None
    notices: NoticeSink | None = None
    orders: OrderLink | None = None
    intake: Intake | None = None
    usable_providers: Callable[[], Mapping[str, bool]] = dict
    health: HealthTally = field(default_factory=HealthTally)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    access: AccessLog = field(default_factory=AccessLog)
    tracer: Tracer = NO_TRACER
    clock: Callable[[], float] = CLOCK.time
    """Unix seconds, by which the lives of files and uploads end."""
    connections: ConnectionTable = field(
        default_factory=lambda: ConnectionTable(ConnectionBounds())
    )
    """Client connections of the port that the API is served on."""
    is_prepared: Callable[[], bool] = lambda: True
    """Whether what only the first calls need has been got, or waited for long enough."""
