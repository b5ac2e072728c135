"""The two things that whoever writes a configuration class needs: ``setting`` declares, ``structure`` reads.

What a setting is stands in ``fields``, how a table becomes a class in ``structure``.
"""

from verniermq.kernel.config.fields import SECRET, Setting, setting, settings_of
from verniermq.kernel.config.structure import structure

__all__ = ["SECRET", "Setting", "setting", "settings_of", "structure"]
