"""`warmroute check-config FILE`: prints the resolved configuration or what is wrong with it."""

import argparse
import sys
from collections.abc import Sequence

from router.config import ConfigError, load_config, read_secret, shown_config


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 and prints JSON, or 2 and prints the error."""
    parser = argparse.ArgumentParser(
        prog="warmroute check-config", description="Checks a router configuration."
    )
    parser.add_argument("file", metavar="FILE", help="TOML or JSON")
    path = parser.parse_args(argv).file
    try:
        config = load_config(path, {})
        for secret_path in (config.secret_file, config.api_key_file):
            read_secret(secret_path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(shown_config(config).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
