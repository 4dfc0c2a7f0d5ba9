"""The largest inputs that are read.

A small hostile file must not exhaust the memory.

Each is far above what a real run needs. What exceeds one is refused with an error that names it.
"""

# Bytes of run.toml, experiment.toml and the like.
SETTINGS_BYTES = 16 * 2**20
# Bytes of one line of a journal, which holds the jobs or reports of one exchange.
LINE_BYTES = 64 * 2**20
# Values of a grid, or of a list of values.
DOMAIN_VALUES = 1_000_000
# Members of a population.
POPULATION = 10_000_000
# Seeds of a comparison.
SEEDS = 100_000
# Bytes of the header of a checkpoint.
HEADER_BYTES = 256 * 2**20
# Bytes of the record of a run of a comparison, decompressed.
RECORD_BYTES = 256 * 2**20
# Connections to the dashboard at a time, each of which takes a thread.
CONNECTIONS = 128
# Characters of an error message; the middle of a longer one is left out.
MESSAGE_CHARACTERS = 4000
