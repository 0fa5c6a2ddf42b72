"""A whole local fleet as child processes: NATS, mock engines, their relay and a router."""
