"""Writes what is generated from the code: the CRDs. Run by `make generate`; CI fails on drift."""

from pathlib import Path

import yaml

from gateway_core.contract.crd import KINDS, build_crd

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Generated from core/gateway_core/contract by `make generate`; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, which not every reader of CRDs follows."""

    def ignore_aliases(self, data: object) -> bool:
        """Nothing is aliased."""
        return True


def main() -> None:
    """Writes one file for each kind into `crds/` and removes those of kinds that are gone."""
    folder = ROOT / "crds"
    folder.mkdir(exist_ok=True)
    wanted = {f"{kind.plural}.yaml": build_crd(kind) for kind in KINDS}
    for stale in {path.name for path in folder.glob("*.yaml")} - set(wanted):
        (folder / stale).unlink()
    for name, crd in wanted.items():
        text = yaml.dump(crd, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
        (folder / name).write_text(HEADER + text)


if __name__ == "__main__":
    main()
