"""Storm: topologies of spouts and bolts as jobs, with external programs that speak Storm's multi-lang protocol.

A topology is a program of another shape: it says what becomes of tuples as the streams below it do, so this room stands
above `stream`, not among the connectors. `topology` is where one is written down, `layout` what all of its tasks know
of it; `spout_source` and `bolt_operator` run components, those of Python in this process (`components`), others as
programs of their own (`shell_program`, by the protocol of `multilang`).

May import: `headrace.stream`, `headrace.connectors.messages`, `headrace.arguments`, `headrace.engine`,
`headrace.state`. Start reading at `topology`, then `bolt_operator`.
"""

from .components import Bolt, ShellBolt, ShellSpout, Spout, Tuple
from .layout import Fields, Stream
from .topology import BoltDeclarer, SpoutDeclarer, Topology, TopologyBuilder

__all__ = [
    "Bolt",
    "BoltDeclarer",
    "Fields",
    "ShellBolt",
    "ShellSpout",
    "Spout",
    "SpoutDeclarer",
    "Stream",
    "Topology",
    "TopologyBuilder",
    "Tuple",
]
