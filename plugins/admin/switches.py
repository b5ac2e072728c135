"""Switches of an Apache broker that switch nothing here; each is answered with how things are.

Cold data: an Apache broker slows groups down that read from the disk. Here old messages are fetched beside the loop,
for four readers at a time, and nobody need be slowed down. Read-ahead: they are fetched exactly as they are asked for.
RocksDB: tables and queues are files of their own.
"""

from __future__ import annotations

from typing import Final

import orjson

from verniermq.kernel import Command, Connection, Handler, RequestCode

NO_COLD_DATA_CONTROL: Final = "nobody is slowed down for reading old messages here; nothing to switch"
READ_AHEAD: Final = "old messages are fetched as they are asked for; there is no mode of reading ahead"
CHECK_ERROR: Final = 3
"""Of ``mqadmin checkRocksdbCqWriteProgress``: it shows the result with its words."""
TABLES_ARE_JSON: Final = "the tables are JSON already, in the folder config of the store"


class SwitchRequests:
    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.cold_data_switch,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.cold_data_switch,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: self.cold_data_info,
            RequestCode.SET_COMMITLOG_READ_MODE: self.read_mode,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: self.rocksdb_queues,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: self.rocksdb_tables,
        }

    def cold_data_switch(self, request: Command, connection: Connection) -> Command:
        return request.reply(remark=NO_COLD_DATA_CONTROL)

    def cold_data_info(self, request: Command, connection: Connection) -> Command:
        """No group has a limit, and none was slowed down."""
        return request.reply(body=orjson.dumps({"configTable": {}, "runtimeTable": {}, "note": NO_COLD_DATA_CONTROL}))

    def read_mode(self, request: Command, connection: Connection) -> Command:
        return request.reply(remark=READ_AHEAD)

    def rocksdb_queues(self, request: Command, connection: Connection) -> Command:
        why = "there are no queues in RocksDB; the files are the only ones"
        return request.reply(body=orjson.dumps({"checkStatus": CHECK_ERROR, "checkResult": why}))

    def rocksdb_tables(self, request: Command, connection: Connection) -> Command:
        return request.reply(remark=TABLES_ARE_JSON)
