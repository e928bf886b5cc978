"""What a vLLM 0.32 answers to POST, read from its routers: what computes in the engine, and what does not. Shared by the tests with fakes and
those with a real vLLM, which compares it with what that one says of itself (/openapi.json)."""
COMPUTE = {
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages", "/v1/systemone",
    "/inference/v1/generate", "/generative_scoring", "/invocations", "/cohere/v2/chat", "/v1/embeddings", "/v2/embed", "/pooling",
    "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v1/audio/transcriptions", "/v1/audio/translations",
}
OTHER = {
    "/ping", "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/completions/render", "/v1/completions/derender",
    "/v1/chat/completions/render", "/v1/chat/completions/derender", "/v1/messages/render", "/v1/responses/render",
    "/cohere/v2/chat/render", "/v1/responses/{response_id}/cancel", "/inference/v1/abort_requests", "/abort_requests",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply",
    "/start_profile", "/stop_profile", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/sleep",
    "/release_kv_cache_memory", "/wake_up", "/pause", "/resume", "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine",
    "/start_weight_update", "/start_draft_weight_update", "/update_weights", "/finish_weight_update", "/update_weight_version",
    "/weight_checker",
}
