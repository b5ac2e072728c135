"""Which messages a consumer wants: tag expressions (:mod:`.tag`) and SQL92 conditions (:mod:`.sql`).

Two plugins behind one hook, ``compile_filter``. Each turns a subscription into a
:class:`~verniermq.kernel.message.MessageFilter` once; afterwards a message costs a set lookup (tags) or a
call of a ready-made function (SQL).
"""
