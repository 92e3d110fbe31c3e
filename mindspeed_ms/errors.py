"""The errors a user sees: one line that names the file or field, the value, what was expected and what to do."""


class MindSpeedError(Exception):
    """Base of every error this package raises on purpose; the CLI prints its one line and exits 2."""


class ConfigError(MindSpeedError):
    """A configuration or an option is unknown, malformed or contradicts another."""


class WeightsError(MindSpeedError):
    """A model directory, safetensors or GGUF file is missing, truncated, inconsistent or unsupported."""


class TokenizerError(MindSpeedError):
    """A tokenizer or chat template is absent, malformed or refused."""


class DataError(MindSpeedError):
    """A corpus, a data set or a piece of one is damaged, unreadable or not what its manifest says."""


class BuildError(MindSpeedError):
    """The native kernel library could not be built or loaded."""


class KernelError(MindSpeedError):
    """A native kernel refused its input."""


class DeviceLostError(KernelError):
    """A step failed in a way that this process cannot recover from: it has to be restarted."""


class BundleError(MindSpeedError):
    """A bundle is damaged, of another version, or not to be trusted."""


class TrainError(MindSpeedError):
    """A training run cannot begin, go on or be resumed."""


class CheckpointError(MindSpeedError):
    """A checkpoint is damaged, incomplete or could not be written."""


class RequestError(MindSpeedError):
    """One request is invalid; others are not affected."""


class ServeError(MindSpeedError):
    """A service could not start or a call to one failed."""
