"""The names that Apache's broker 5.5.0 showed under a small mixed load, with kind and labels; and the exporter's."""

from __future__ import annotations

from typing import Final

C: Final = {"cluster", "node_id", "node_type", "otel_scope_name"}
S: Final = {*C, "storage_medium", "storage_type"}
LAG: Final = {*C, "consumer_group", "is_retry", "is_system", "topic"}
CLIENT: Final = {*C, "language", "protocol_type", "version"}
RPC: Final = {*C, "is_long_polling", "protocol_type", "request_code", "response_code", "result"}

APACHE: Final[dict[str, tuple[str, set[str]]]] = {
    "rocketmq_broker_permission": ("gauge", C),
    "rocketmq_commit_messages_total": ("counter", {*C, "topic"}),
    "rocketmq_consumer_connections": (
        "gauge",
        {*C, "consume_mode", "consumer_group", "is_system", "language", "protocol_type", "version"},
    ),
    "rocketmq_consumer_group_number": ("gauge", C),
    "rocketmq_consumer_inflight_messages": ("gauge", {*C, "consumer_group", "is_retry", "is_system", "topic"}),
    "rocketmq_consumer_lag_latency_milliseconds": ("gauge", {*C, "consumer_group", "is_retry", "is_system", "topic"}),
    "rocketmq_consumer_lag_messages": ("gauge", {*C, "consumer_group", "is_retry", "is_system", "topic"}),
    "rocketmq_consumer_queueing_latency_milliseconds": (
        "gauge",
        {*C, "consumer_group", "is_retry", "is_system", "topic"},
    ),
    "rocketmq_consumer_ready_messages": ("gauge", {*C, "consumer_group", "is_retry", "is_system", "topic"}),
    "rocketmq_delay_message_latency_seconds": ("histogram", {*S, "topic"}),
    "rocketmq_finish_message_latency_milliseconds": ("histogram", {*C, "topic"}),
    "rocketmq_half_messages": ("gauge", {*C, "topic"}),
    "rocketmq_message_size": ("histogram", {*C, "is_system", "message_type", "topic"}),
    "rocketmq_messages_in_total": ("counter", {*C, "is_system", "message_type", "topic"}),
    "rocketmq_messages_out_total": ("counter", {*C, "consumer_group", "is_system", "topic"}),
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": ("histogram", C),
    "rocketmq_pop_checkpoint_buffer_size": ("gauge", C),
    "rocketmq_pop_offset_buffer_size": ("gauge", C),
    "rocketmq_pop_revive_lag_milliseconds": ("gauge", {*C, "queue_id"}),
    "rocketmq_pop_revive_latency_milliseconds": ("gauge", {*C, "queue_id"}),
    "rocketmq_processor_watermark": ("gauge", {*C, "processor"}),
    "rocketmq_producer_connections": ("gauge", {*C, "language", "protocol_type", "version"}),
    "rocketmq_rollback_messages_total": ("counter", {*C, "topic"}),
    "rocketmq_rpc_latency_milliseconds": (
        "histogram",
        {*C, "is_long_polling", "protocol_type", "request_code", "response_code", "result"},
    ),
    "rocketmq_send_to_dlq_messages_total": ("counter", {*C, "consumer_group", "is_system", "topic"}),
    "rocketmq_storage_dispatch_behind_bytes": ("gauge", S),
    "rocketmq_storage_flush_behind_bytes": ("gauge", S),
    "rocketmq_storage_message_reserve_time_milliseconds": ("gauge", S),
    "rocketmq_storage_size_bytes": ("gauge", S),
    "rocketmq_throughput_in_total": ("counter", {*C, "is_system", "message_type", "topic"}),
    "rocketmq_throughput_out_total": ("counter", {*C, "consumer_group", "is_system", "topic"}),
    "rocketmq_timer_dequeue_lag": ("gauge", S),
    "rocketmq_timer_dequeue_latency_milliseconds": ("gauge", S),
    "rocketmq_timer_enqueue_lag": ("gauge", S),
    "rocketmq_timer_enqueue_latency_milliseconds": ("gauge", S),
    "rocketmq_timer_enqueue_total": ("counter", {*S, "topic"}),
    "rocketmq_timer_message_snapshot": ("gauge", {*S, "timer_bound_s"}),
    "rocketmq_timing_messages": ("gauge", {*S, "topic"}),
    "rocketmq_topic_create_execution_time_milliseconds": ("histogram", {*C, "invocation_status", "is_system"}),
    "rocketmq_topic_number": ("gauge", C),
}

BUCKETS: Final = {
    "rocketmq_consumer_group_create_execution_time_milliseconds": "10.0 100.0 1000.0 3000.0 5000.0",
    "rocketmq_delay_message_latency_seconds": "60.0 600.0 3600.0 43200.0 86400.0 259200.0",
    "rocketmq_finish_message_latency_milliseconds": "5.0 60.0 600.0 3600.0 43200.0 86400.0",
    "rocketmq_message_size": "1024.0 4096.0 524288.0 1048576.0 2097152.0 4194304.0",
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "1.0 10.0 100.0 1000.0 2000.0 3000.0",
    "rocketmq_rpc_latency_milliseconds": "1.0 3.0 5.0 7.0 10.0 100.0 1000.0 2000.0 3000.0",
    "rocketmq_topic_create_execution_time_milliseconds": "10.0 100.0 1000.0 3000.0 5000.0",
}
"""Where the ranges of its histograms end, as they are written; behind these comes ``+Inf``."""

RUNTIME: Final = """
commitlog_disk_ratio commitlog_maxoffset commitlog_minoffset commitlogdir_capacity_free commitlogdir_capacity_total
consumequeue_disk_ratio dispatch_behind_bytes dispatch_maxbuffer earliest_message_timestamp getfound_tps10
getfound_tps60 getfound_tps600 getmessage_entire_time_max getmiss_tps10 getmiss_tps60 getmiss_tps600 gettotal_tps10
gettotal_tps60 gettotal_tps600 gettransfered_tps10 gettransfered_tps60 gettransfered_tps600 msg_gettotal_today_now
msg_gettotal_todaymorning msg_gettotal_yesterdaymorning msg_put_total_today_now msg_puttotal_todaymorning
msg_puttotal_yesterdaymorning pagecache_lock_time_mills pmdt_0ms pmdt_0to10ms pmdt_100to200ms pmdt_10stomore
pmdt_10to50ms pmdt_1to2s pmdt_200to500ms pmdt_2to3s pmdt_3to4s pmdt_4to5s pmdt_500to1s pmdt_50to100ms pmdt_5to10s
pull_threadpoolqueue_capacity pull_threadpoolqueue_headwait_timemills pull_threadpoolqueue_size put_latency_99
put_latency_999 put_message_average_size put_message_size_total put_tps10 put_tps60 put_tps600
putmessage_entire_time_max putmessage_times_total query_threadpool_queue_capacity
query_threadpoolqueue_headwait_timemills query_threadpoolqueue_size remain_howmanydata_toflush
remain_transientstore_buffer_numbs send_threadpool_queue_size send_threadpoolqueue_capacity
send_threadpoolqueue_headwait_timemills start_accept_sendrequest_time
"""
OTHERS: Final = """
rocketmq_broker_commitlog_diff rocketmq_broker_qps rocketmq_broker_tps rocketmq_client_consume_fail_msg_count
rocketmq_client_consume_fail_msg_tps rocketmq_client_consume_ok_msg_tps rocketmq_client_consume_rt
rocketmq_client_consumer_pull_rt rocketmq_client_consumer_pull_tps rocketmq_consumer_message_size
rocketmq_consumer_offset rocketmq_consumer_tps rocketmq_group_consume_total_offset rocketmq_group_consume_tps
rocketmq_group_count rocketmq_group_diff rocketmq_group_dlqdiff rocketmq_group_get_latency_by_storetime
rocketmq_group_retrydiff rocketmq_producer_count rocketmq_producer_message_size rocketmq_producer_offset
rocketmq_producer_tps rocketmq_send_back_nums rocketmq_topic_dlq_offset rocketmq_topic_retry_offset
"""
EXPORTER: Final = {*(f"rocketmq_brokeruntime_{name}" for name in RUNTIME.split()), *OTHERS.split()}

LEFT_OUT: Final = """
dispatch_maxbuffer earliest_message_timestamp getfound_tps60 getfound_tps600 getmessage_entire_time_max getmiss_tps60
getmiss_tps600 gettotal_tps60 gettotal_tps600 gettransfered_tps60 gettransfered_tps600 pagecache_lock_time_mills
pull_threadpoolqueue_capacity pull_threadpoolqueue_size put_latency_99 put_latency_999 put_tps60 put_tps600
putmessage_entire_time_max putmessage_times_total query_threadpool_queue_capacity query_threadpoolqueue_size
remain_howmanydata_toflush remain_transientstore_buffer_numbs send_threadpool_queue_size send_threadpoolqueue_capacity
start_accept_sendrequest_time
"""
DRAWN: Final = """
rocketmq_broker_qps rocketmq_broker_tps rocketmq_consumer_message_size rocketmq_consumer_offset rocketmq_consumer_tps
rocketmq_group_get_latency_by_storetime rocketmq_producer_message_size rocketmq_producer_offset rocketmq_producer_tps
"""
GRAFANA_10477: Final = {
    *(f"rocketmq_brokeruntime_{name}" for name in RUNTIME.split() if name not in LEFT_OUT.split()),
    *DRAWN.split(),
}
"""What the dashboard in the exporter's repository asks for, but for the figures that only clients know. It selects by
no label; once it takes what groups consumed, by ``group`` and ``topic``, from what was produced, by ``topic``."""
