"""The models of goldens.py: configurations of tiny ones, each with what makes its class itself; what
transformers 4 writes, too; and which are quantized how."""
VOCAB, GREEDY = 64, 64
SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32)
FULL, SLIDING = "full_attention", "sliding_attention"
VISION = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
              num_attention_heads=2, image_size=28, patch_size=14)


def case(name, cls, spelled4=None, prompts=((5, GREEDY, 0), (50, GREEDY, 0)), quant=None, words=None,
         shards="5GB", sees=None, outer=None, joined=False, **config):
    """spelled4: what the old spelling has besides, or None for keys that it lacks. words: the kind
    of a tokenizer that is saved beside. sees: the vision part of a class that has one beside the text
    part of this configuration; outer: what its own has beside these. joined: all experts of a layer in one
    tensor, as transformers 5 computes."""
    return dict(name=name, cls=cls, config={**SMALL, **config}, spelled4=spelled4 or {},
                prompts=prompts, quant=quant, words=words, shards=shards, sees=sees, outer=outer or {}, joined=joined)


CASES = [
    case("llama", "Llama"),
    case("llama-llama3", "Llama", rope_parameters=LLAMA3, tie_word_embeddings=True),
    case("llama-linear", "Llama", max_position_embeddings=64, num_key_value_heads=4,
         rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    case("llama-dynamic", "Llama", max_position_embeddings=128,
         rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0)),
    case("llama-dynamic-far", "Llama", max_position_embeddings=32, num_key_value_heads=4,
         rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0),
         prompts=((20, GREEDY, 0), (60, GREEDY, 0), (31, GREEDY, 0))),
    case("llama-bias", "Llama", attention_bias=True, mlp_bias=True, head_dim=12,
         num_attention_heads=2, num_key_value_heads=1),
    case("mistral", "Mistral", head_dim=16, sliding_window=None,
         rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    case("mistral-window", "Mistral", sliding_window=13),
    case("qwen2", "Qwen2", tie_word_embeddings=True),
    case("qwen2-window", "Qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1,
         layer_types=[FULL, SLIDING]),
    case("qwen2-yarn", "Qwen2", rope_parameters=YARN),
    case("qwen3", "Qwen3", head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    case("qwen3-yarn", "Qwen3", head_dim=16, attention_bias=True, rope_parameters={
        **YARN, "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3}),
    case("ministral", "Ministral", head_dim=8, sliding_window=11, layer_types=[SLIDING, FULL],
         spelled4={"layer_types": [SLIDING, FULL]}),
    case("phi3", "Phi3", sliding_window=15, num_key_value_heads=4),
    case("phi3-longrope", "Phi3", hidden_size=64, max_position_embeddings=160,
         original_max_position_embeddings=40, tie_word_embeddings=True,
         rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
                              short_factor=[1.0, 1.1, 1.25, 1.4],
                              long_factor=[1.05, 1.8, 3.1, 4.0]),
         prompts=((5, 34, 40), (50, GREEDY, 0))),
    case("gemma", "Gemma", head_dim=16, num_key_value_heads=1),
    case("gemma2", "Gemma2", head_dim=16, query_pre_attn_scalar=24, sliding_window=14,
         attn_logit_softcapping=3.0, final_logit_softcapping=20.0, num_hidden_layers=3),
    case("gemma3", "Gemma3Text", head_dim=16, query_pre_attn_scalar=20, sliding_window=10,
         num_hidden_layers=4, layer_types=[SLIDING, SLIDING, FULL, SLIDING], rope_parameters={
             SLIDING: dict(rope_type="default", rope_theta=10000.0),
             FULL: dict(rope_type="linear", rope_theta=1e6, factor=8.0)},
         spelled4={"sliding_window_pattern": 3, "_sliding_window_pattern": None,
                   "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
                   "rope_scaling": dict(rope_type="linear", factor=8.0)}),
    case("smollm3", "SmolLM3", num_hidden_layers=4, no_rope_layer_interval=2,
         spelled4={"no_rope_layers": [1, 0, 1, 0], "no_rope_layer_interval": None}),
    case("smollm3-window", "SmolLM3", num_hidden_layers=3, use_sliding_window=True,
         sliding_window=12, no_rope_layers=[1, 0, 1], mlp_bias=True),
    case("olmo2", "Olmo2", num_key_value_heads=4, shards="15KB"),
    case("olmo3", "Olmo3", num_hidden_layers=4, sliding_window=12, rope_parameters={
             SLIDING: dict(rope_type="default", rope_theta=5e5),
             FULL: dict(YARN, rope_theta=5e5)},
         spelled4={"rope_theta": 5e5,
                   "rope_scaling": {k: v for k, v in YARN.items() if k != "rope_theta"}}),
    case("granite", "Granite", embedding_multiplier=3.0, attention_multiplier=0.4,
         residual_multiplier=0.6, logits_scaling=2.5, attention_bias=True),
    case("mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=21),
    case("qwen3-moe", "Qwen3Moe", head_dim=16, num_experts=6, num_local_experts=6,
         num_experts_per_tok=3, moe_intermediate_size=20, num_hidden_layers=3, mlp_only_layers=[1],
         norm_topk_prob=True, spelled4={"num_experts": 6, "num_local_experts": None}),
    case("qwen3-moe-plain", "Qwen3Moe", head_dim=8, num_experts=5, num_local_experts=5,
         num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=2,
         attention_bias=True, spelled4={"num_experts": 5, "num_local_experts": None}),
    case("olmoe", "Olmoe", num_experts=5, num_experts_per_tok=2, intermediate_size=24),
    case("granite-moe", "GraniteMoe", num_local_experts=4, num_experts_per_tok=2,
         intermediate_size=24, embedding_multiplier=2.0, attention_multiplier=0.3,
         residual_multiplier=0.7, logits_scaling=2.0, tie_word_embeddings=True),
    # of models that see, too
    case("sees-gemma3", "Gemma3", prompts=((30, 24, 0),), sees=VISION, model_type="gemma3_text", head_dim=8,
         query_pre_attn_scalar=8, sliding_window=10, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL]),
    case("sees-mistral3", "Mistral3", prompts=((30, 24, 0),), sees=dict(VISION, model_type="pixtral", head_dim=8),
         model_type="mistral", head_dim=8, sliding_window=None),
    case("sees-llava", "Llava", prompts=((30, 24, 0),), sees=dict(VISION, model_type="clip_vision_model",
         projection_dim=16), model_type="llama", tie_word_embeddings=False),
    case("sees-qwen2.5-vl", "Qwen2_5_VL", prompts=((30, 24, 0),), sees=dict(
         depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=14),
         rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[1, 1, 2])),
    case("sees-qwen3-vl", "Qwen3VL", prompts=((30, 24, 0),), sees=dict(
         depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=14,
         num_position_embeddings=16, deepstack_visual_indexes=[0]), head_dim=8, tie_word_embeddings=True,
         rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 1, 1], mrope_interleaved=True)),
    # whole directories, to be served as they are
    case("served-llama", "Llama", words="pieces", prompts=((20, 12, 0),), vocab_size=320,
         tie_word_embeddings=True),
    case("served-qwen2", "Qwen2", words="bytes", prompts=((20, 12, 0),), vocab_size=320,
         tie_word_embeddings=True),
]


GPT_OSS = dict(head_dim=16, sliding_window=12,
               rope_parameters=dict(YARN, rope_theta=15000.0, truncate=False))
CASES += [
    case("gpt-oss", "GptOss", num_local_experts=5, num_experts_per_tok=2, intermediate_size=20,
         **GPT_OSS),
    case("gpt-oss-mxfp4", "GptOss", quant="mxfp4", num_local_experts=4, num_experts_per_tok=3,
         intermediate_size=64, layer_types=[FULL, SLIDING],
         spelled4={"layer_types": [FULL, SLIDING]}, **{**GPT_OSS, "hidden_size": 64}),
]

# Of 2025 and 2026, with shorter answers.
SHORT = ((5, 24, 0), (50, 24, 0))
ONE = ((30, 24, 0),)
GLM_MOE = dict(head_dim=16, prompts=SHORT, num_hidden_layers=3, n_routed_experts=6, num_experts_per_tok=2,
               moe_intermediate_size=20, routed_scaling_factor=2.5)
MINISTRAL3 = dict(prompts=SHORT, head_dim=8, rope_parameters=dict(
    YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5))
LLAMA4 = dict(prompts=SHORT, num_hidden_layers=4, head_dim=8, intermediate_size=24, intermediate_size_mlp=40,
              num_local_experts=4, interleave_moe_layer_step=2, attention_chunk_size=16, floor_scale=12,
              attn_scale=0.5)
CASES += [
    case("glm", "Glm", prompts=SHORT, head_dim=16),
    case("glm4", "Glm4", prompts=SHORT, head_dim=16, attention_bias=True),
    case("glm4-moe", "Glm4Moe", **GLM_MOE, attention_bias=True, use_qk_norm=True),
    case("glm4-moe-groups", "Glm4Moe", joined=True, n_shared_experts=2, n_group=3, topk_group=2,
         first_k_dense_replace=0, norm_topk_prob=False,
         **{**GLM_MOE, "n_routed_experts": 9, "num_hidden_layers": 2, "prompts": ((30, 24, 0),)}),
    case("seed-oss", "SeedOss", prompts=SHORT, head_dim=16, attention_out_bias=True),
    case("ernie", "Ernie4_5", prompts=SHORT, head_dim=16, use_bias=True),
    case("ernie-moe", "Ernie4_5_Moe", prompts=SHORT, num_hidden_layers=4, moe_num_experts=6, moe_k=3,
         moe_intermediate_size=20, moe_num_shared_experts=2, moe_layer_end_index=2),
    case("exaone4", "Exaone4", prompts=SHORT, num_hidden_layers=4, head_dim=16, sliding_window=12,
         rope_parameters=LLAMA3),
    case("exaone4-full", "Exaone4", prompts=SHORT, sliding_window=None, layer_types=[FULL, FULL],
         tie_word_embeddings=True),
    case("hunyuan", "HunYuanDenseV1", prompts=SHORT, head_dim=16, tie_word_embeddings=True, rope_parameters=dict(
         rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0,
         mscale_all_dim=1.0)),
    case("ministral3", "Ministral3", **MINISTRAL3),
    case("llama4", "Llama4Text", **LLAMA4, num_experts_per_tok=1),
    case("llama4-plain", "Llama4Text", **{**LLAMA4, "interleave_moe_layer_step": 1}, num_experts_per_tok=2,
         use_qk_norm=False, attn_temperature_tuning=False, no_rope_layers=[0, 1, 1, 0], rope_parameters=LLAMA3),
    case("sees-ministral3", "Mistral3", sees=dict(VISION, model_type="pixtral", head_dim=8),
         model_type="ministral3", tie_word_embeddings=False, **{**MINISTRAL3, "prompts": ((30, 24, 0),)}),
    case("sees-llama4", "Llama4", sees=dict(
         model_type="llama4_vision_model", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
         num_attention_heads=2, image_size=28, patch_size=14, vision_output_dim=16, projector_input_dim=16,
         projector_output_dim=16), model_type="llama4_text", tie_word_embeddings=False, num_experts_per_tok=1,
         **{**LLAMA4, "prompts": ((30, 24, 0),)}),
]

DEEPSEEK = dict(prompts=SHORT, num_hidden_layers=3, num_key_value_heads=4, kv_lora_rank=24, qk_nope_head_dim=12,
                qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=9, num_experts_per_tok=3, moe_intermediate_size=20,
                first_k_dense_replace=1)
DEEPSEEK_V3 = dict(DEEPSEEK, q_lora_rank=20, n_group=3, topk_group=2, n_shared_experts=1, rope_parameters=dict(
    YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0))
CASES += [
    # transformers 4 leaves the square of yarn's mscale out of this class's scores; V3's has it
    case("deepseek-v2", "DeepseekV2", **DEEPSEEK, q_lora_rank=None, n_shared_experts=2, routed_scaling_factor=1.5,
         rope_parameters=dict(YARN, beta_fast=32.0, beta_slow=1.0, mscale=0.707, mscale_all_dim=0.707),
         spelled4={"rope_scaling": dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=32, beta_fast=32.0,
                                        beta_slow=1.0)}),
    case("deepseek-v2-groups", "DeepseekV2", **DEEPSEEK, q_lora_rank=20, n_shared_experts=1, n_group=3, topk_group=2,
         topk_method="group_limited_greedy", routed_scaling_factor=4.0, attention_bias=True),
    case("deepseek-v3", "DeepseekV3", **DEEPSEEK_V3),
    case("deepseek-v3-plain", "DeepseekV3", joined=True, q_lora_rank=None, n_group=1, topk_group=1, n_shared_experts=2,
         rope_interleave=False, norm_topk_prob=False, attention_bias=True,
         **{**DEEPSEEK, "first_k_dense_replace": 0, "num_hidden_layers": 2, "prompts": ((30, 24, 0),)}),
]

# More of the last years, most with the parts of others.
MLA = dict(DEEPSEEK, q_lora_rank=20, n_group=1, topk_group=1, n_shared_experts=1)
CASES += [
    case("hunyuan-moe", "HunYuanMoEV1", prompts=SHORT, head_dim=16, num_experts=6, moe_topk=[3, 3],
         intermediate_size=20, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0,
                                                    beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)),
    case("glm4-moe-lite", "Glm4MoeLite", **{k: v for k, v in MLA.items() if k != "first_k_dense_replace"},
         routed_scaling_factor=1.8, mlp_layer_types=["dense", "sparse", "sparse"]),
    case("minimax-m2", "MiniMaxM2", prompts=SHORT, head_dim=16, num_local_experts=6, num_experts_per_tok=3,
         intermediate_size=20, rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5)),
    case("solar-open", "SolarOpen", **GLM_MOE, attention_bias=True, n_shared_experts=1,
         rope_parameters=dict(YARN, partial_rotary_factor=1.0)),
    case("exaone-moe", "ExaoneMoe", prompts=SHORT, num_hidden_layers=4, head_dim=16, sliding_window=12,
         num_experts=9, num_experts_per_tok=3, moe_intermediate_size=20, num_shared_experts=2, n_group=3, topk_group=2),
    case("dots1", "Dots1", **GLM_MOE, first_k_dense_replace=1, attention_bias=True, norm_topk_prob=True,
         n_shared_experts=2, sliding_window=11, max_window_layers=2),
    case("mistral4", "Mistral4", **MLA, rope_parameters=dict(
        YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5)),
    case("mistral4-groups", "Mistral4", joined=True, **{
        **MLA, "n_group": 3, "topk_group": 2, "n_shared_experts": 2, "q_lora_rank": None, "prompts": ((30, 24, 0),)},
         norm_topk_prob=False, routed_scaling_factor=2.0, rope_parameters=dict(YARN, llama_4_scaling_beta=0.2)),
    case("arcee", "Arcee", prompts=SHORT, mlp_bias=True, attention_bias=True, rope_parameters=YARN),
    case("granite-moe-shared", "GraniteMoeShared", prompts=SHORT, num_local_experts=4, num_experts_per_tok=2,
         intermediate_size=24, shared_intermediate_size=28, embedding_multiplier=2.0, attention_multiplier=0.3,
         residual_multiplier=0.7, logits_scaling=2.0),
    case("cwm", "Cwm", prompts=SHORT, num_hidden_layers=5, head_dim=16, sliding_window=12, rope_parameters=LLAMA3),
]

# Whose attention chooses among more than index_topk tokens.
DSA = dict(DEEPSEEK_V3, index_topk=128, index_n_heads=4, index_head_dim=16)
CASES += [
    case("deepseek-v32", "DeepseekV32", **{k: v for k, v in DSA.items() if k != "first_k_dense_replace"},
         mlp_layer_types=["dense", "sparse", "sparse"]),
    case("glm-moe-dsa", "GlmMoeDsa", **{**{k: v for k, v in DSA.items() if k not in ("first_k_dense_replace", "rope_parameters")},
         "n_group": 1, "topk_group": 1, "prompts": ((30, 24, 0),)}, mlp_layer_types=["dense", "sparse", "sparse"],
         indexer_types=["full", "shared", "full"]),
]

# Norms less the mean, halves side by side, feed-forwards without a gate.
CASES += [
    case("cohere", "Cohere", prompts=SHORT, logit_scale=0.8),
    case("cohere-norms", "Cohere", prompts=((30, 24, 0),), use_qk_norm=True, attention_bias=True, logit_scale=0.25,
         tie_word_embeddings=False),
    case("cohere2", "Cohere2", prompts=SHORT, num_hidden_layers=4, sliding_window=12, logit_scale=0.25,
         rope_parameters=dict(rope_type="default", rope_theta=50000.0)),
    case("starcoder2", "Starcoder2", prompts=SHORT, sliding_window=13),
    case("starcoder2-plain", "Starcoder2", prompts=((30, 24, 0),), use_bias=False, hidden_act="gelu",
         tie_word_embeddings=False),
    case("stablelm", "StableLm", prompts=SHORT, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
    case("stablelm-2", "StableLm", prompts=((30, 24, 0),), use_qkv_bias=True, tie_word_embeddings=True),
    case("stablelm-parallel", "StableLm", prompts=((30, 24, 0),), use_parallel_residual=True, qk_layernorm=True),
    case("nemotron", "Nemotron", prompts=SHORT, attention_bias=True, mlp_bias=True),
    case("apertus", "Apertus", prompts=SHORT, rope_parameters=LLAMA3),
    case("apertus-bias", "Apertus", prompts=((30, 24, 0),), attention_bias=True, tie_word_embeddings=True,
         rope_parameters=dict(rope_type="default", rope_theta=12e6)),
    case("afmoe", "Afmoe", prompts=SHORT, num_hidden_layers=3, layer_types=[SLIDING, FULL, SLIDING], head_dim=16,
         sliding_window=12, num_experts=6, num_local_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
         num_shared_experts=2, num_dense_layers=1, route_scale=2.8, mup_enabled=True),
    case("afmoe-joined", "Afmoe", joined=True, prompts=((30, 24, 0),), head_dim=16, num_experts=6, num_local_experts=6,
         num_experts_per_tok=2, moe_intermediate_size=20, num_shared_experts=1, num_dense_layers=0,
         layer_types=[FULL, SLIDING], attention_bias=True, sliding_window=9),
]

# Hybrids: most layers keep a state instead of keys and values.
LINEAR = "linear_attention"
HYBRID = dict(prompts=((1, 24, 0), (5, 24, 0), (70, 24, 0), (150, 24, 0)), num_hidden_layers=4, head_dim=16,
              linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=2,
              linear_num_value_heads=4, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                             partial_rotary_factor=0.25))
HYBRID_MOE = dict(HYBRID, num_experts=6, num_local_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
                  shared_expert_intermediate_size=24)
OLMO_HYBRID = dict(num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=4, linear_key_head_dim=8, linear_value_head_dim=20,
                   rope_parameters=dict(rope_type="default", rope_theta=5e5))
CASES += [
    case("olmo-hybrid", "OlmoHybrid", prompts=SHORT, **OLMO_HYBRID),
    case("olmo-hybrid-bare", "OlmoHybrid", prompts=((30, 24, 0),), **{**OLMO_HYBRID, "rope_parameters": dict(rope_type="default", rope_theta=None), "linear_key_head_dim": 16},
         linear_allow_neg_eigval=False, linear_num_key_heads=2, attention_bias=True, layer_types=[LINEAR, FULL, LINEAR, FULL]),
]
MROPE = dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5, mrope_section=[2, 1, 1],
             mrope_interleaved=True)
QWEN_VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=14,
                   num_position_embeddings=16)
CASES += [
    case("qwen2-moe", "Qwen2Moe", prompts=SHORT, num_experts=6, num_local_experts=6, num_experts_per_tok=3,
         moe_intermediate_size=20, shared_expert_intermediate_size=28, num_hidden_layers=3, mlp_only_layers=[1],
         spelled4={"num_experts": 6, "num_local_experts": None}),
    case("qwen3-next", "Qwen3Next", **HYBRID_MOE, mlp_only_layers=[2], attention_bias=True, full_attention_interval=2,
         spelled4={"num_experts": 6, "num_local_experts": None, "partial_rotary_factor": 0.25}),
    case("qwen3-next-wide", "Qwen3Next", joined=True, **{
        **HYBRID_MOE, "linear_num_value_heads": 2, "linear_value_head_dim": 40, "linear_key_head_dim": 33,
        "linear_conv_kernel_dim": 2, "norm_topk_prob": False, "prompts": SHORT, "num_hidden_layers": 3},
         layer_types=[FULL, LINEAR, FULL]),
    case("qwen3.5", "Qwen3_5Text", **{**HYBRID, "num_hidden_layers": 5}, tie_word_embeddings=True,
         layer_types=[LINEAR, FULL, LINEAR, LINEAR, FULL]),
    case("qwen3.5-moe", "Qwen3_5MoeText", **HYBRID_MOE),
    case("sees-qwen3.5", "Qwen3_5", sees=QWEN_VISION, **{
        **HYBRID, "prompts": ((30, 24, 0),), "rope_parameters": MROPE}, tie_word_embeddings=True),
    case("sees-qwen3.5-moe", "Qwen3_5Moe", sees=QWEN_VISION, **{
        **HYBRID_MOE, "prompts": ((30, 24, 0),), "rope_parameters": MROPE}, tie_word_embeddings=False),
]

CASES += [case("served-qwen3.5", "Qwen3_5Text", words="bytes", vocab_size=320, tie_word_embeddings=True,
               **{**HYBRID, "prompts": ((20, 12, 0),)})]
LFM2 = dict(prompts=((1, 24, 0), (5, 24, 0), (150, 24, 0)), num_hidden_layers=4, conv_L_cache=3,
            rope_parameters=dict(rope_type="default", rope_theta=1e6))
CASES += [
    case("lfm2", "Lfm2", **LFM2, layer_types=["conv", FULL, "conv", FULL], block_multiple_of=16,
         block_ffn_dim_multiplier=1.3, conv_bias=True),
    case("lfm2-moe", "Lfm2Moe", **{**LFM2, "conv_L_cache": 4}, layer_types=["conv", "conv", FULL, "conv"],
         num_experts=6, num_local_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, num_dense_layers=1,
         routed_scaling_factor=1.5, tie_word_embeddings=False, spelled4={"num_experts": 6, "num_local_experts": None}),
]

# Layers whose heads differ, and what else Gemma 4 has of each size.
PROPORTIONAL = {SLIDING: dict(rope_type="default", rope_theta=10000.0),
                FULL: dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25)}
GEMMA4 = dict(prompts=((1, 24, 0), (5, 24, 0), (50, 24, 0), (150, 24, 0)), head_dim=8, global_head_dim=16,
              sliding_window=10, rope_parameters=PROPORTIONAL, hidden_size_per_layer_input=0,
              final_logit_softcapping=30.0)
GEMMA4_INPUT = dict(GEMMA4, hidden_size_per_layer_input=6, vocab_size_per_layer_input=VOCAB)
CASES += [
    case("gemma4", "Gemma4Text", **GEMMA4, num_hidden_layers=5, layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL],
         attention_k_eq_v=True, num_global_key_value_heads=1),
    case("gemma4-bias", "Gemma4Text", **{**GEMMA4, "prompts": SHORT}, num_hidden_layers=3, attention_bias=True,
         layer_types=[FULL, SLIDING, FULL], tie_word_embeddings=False),
    case("gemma4-input", "Gemma4Text", **GEMMA4_INPUT, num_hidden_layers=6, layer_types=[SLIDING, FULL] * 3,
         num_kv_shared_layers=3, use_double_wide_mlp=True),
    case("gemma4-moe", "Gemma4Text", **GEMMA4, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL],
         attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=6, top_k_experts=3,
         moe_intermediate_size=20),
    case("served-gemma4", "Gemma4Text", words="bytes", **{
        **GEMMA4_INPUT, "prompts": ((20, 12, 0),), "vocab_size": 320, "vocab_size_per_layer_input": 320},
         num_hidden_layers=4, layer_types=[SLIDING, FULL] * 2, num_kv_shared_layers=2, use_double_wide_mlp=True),
    case("sees-gemma4", "Gemma4", sees=dict(
         model_type="gemma4_vision", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
         num_key_value_heads=2, head_dim=8, patch_size=4, position_embedding_size=16), model_type="gemma4_text",
         **{**GEMMA4_INPUT, "prompts": ((30, 24, 0),)}, num_hidden_layers=4, num_kv_shared_layers=2,
         layer_types=[SLIDING, FULL] * 2),
]
CASES += [case("sees-gemma4-unified", "Gemma4Unified", sees=dict(
    model_type="gemma4_unified_vision", patch_size=4, mm_embed_dim=32, mm_posemb_size=16, output_proj_dims=32),
    model_type="gemma4_unified_text", prompts=((30, 24, 0),), head_dim=8, global_head_dim=16, sliding_window=10,
    rope_parameters=PROPORTIONAL, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL], attention_k_eq_v=True,
    num_global_key_value_heads=1, final_logit_softcapping=30.0)]

# Mamba 2.
MAMBA = "linear_attention"
GRANITE4 = dict(prompts=((1, 24, 0), (5, 24, 0), (70, 24, 0), (150, 24, 0)), num_hidden_layers=4,
                layer_types=[MAMBA, FULL, MAMBA, FULL], mamba_n_heads=4, mamba_d_state=12, mamba_chunk_size=32,
                shared_intermediate_size=40, embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.6,
                logits_scaling=2.5)
CASES += [
    case("granite-hybrid", "GraniteMoeHybrid", **{**GRANITE4, "prompts": SHORT}, num_local_experts=5,
         num_experts_per_tok=2, intermediate_size=24, position_embedding_type="rope", tie_word_embeddings=True,
         spelled4={"layer_types": ["mamba", "attention", "mamba", "attention"]}),
    case("granite-hybrid-dense", "GraniteMoeHybrid", **GRANITE4, num_local_experts=0, mamba_n_groups=2, mamba_d_conv=3,
         mamba_proj_bias=True, attention_bias=True, time_step_limit=(0.1, 2.0)),
]

# Mamba 2 and attention in each layer, with multipliers.
FALCON_H1 = dict(prompts=((1, 24, 0), (5, 24, 0), (70, 24, 0), (150, 24, 0)), mamba_d_ssm=48, mamba_n_heads=4,
                 mamba_d_state=12, mamba_chunk_size=32)
CASES += [
    case("falcon-h1", "FalconH1", **FALCON_H1, embedding_multiplier=2.5, lm_head_multiplier=0.7, key_multiplier=0.6,
         mlp_multipliers=[0.8, 1.4], attention_in_multiplier=0.9, attention_out_multiplier=0.7, ssm_in_multiplier=1.2,
         ssm_out_multiplier=0.5, ssm_multipliers=[0.6, 1.3, 0.7, 1.5, 0.8]),
    case("falcon-h1-norm", "FalconH1", **{**FALCON_H1, "mamba_d_ssm": None, "prompts": SHORT}, mamba_rms_norm=True,
         mamba_n_groups=2, mamba_proj_bias=True, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    case("falcon-h1-gate", "FalconH1", **{**FALCON_H1, "prompts": ONE}, mamba_rms_norm=True, projectors_bias=True,
         mamba_norm_before_gate=False, mamba_conv_bias=False, ssm_multipliers=[1.0, 1.0, 0.7, 1.5, 1.0]),
]

# Each layer is one mixer. The least step, which is said to be of drawing weights, is taken by chunks for a limit.
NEMOTRON_H = dict(prompts=((1, 24, 0), (5, 24, 0), (70, 24, 0), (150, 24, 0)), head_dim=16, mamba_head_dim=16,
                  ssm_state_size=12, chunk_size=32, layer_norm_epsilon=1e-5, time_step_min=1e-9)
CASES += [
    case("nemotron-h", "NemotronH", **NEMOTRON_H, layers_block_type=[MAMBA, "mlp", MAMBA, FULL, "mlp"], mamba_num_heads=4,
         n_groups=2),
    case("nemotron-h-bias", "NemotronH", **{**NEMOTRON_H, "prompts": SHORT}, mamba_num_heads=6, n_groups=1, use_bias=True,
         layers_block_type=[FULL, "mlp", MAMBA, MAMBA, "mlp", FULL], mlp_bias=True, use_conv_bias=False, conv_kernel=3),
]
NEMOTRON3 = dict(NEMOTRON_H, mamba_num_heads=4, n_groups=2, n_routed_experts=6, num_experts_per_tok=3,
                 moe_intermediate_size=20, moe_shared_expert_intermediate_size=36, routed_scaling_factor=2.5)
CASES += [
    case("nemotron-h-moe", "NemotronH", **NEMOTRON3, layers_block_type=[MAMBA, "moe", MAMBA, FULL, "moe"]),
    case("nemotron-h-shared", "NemotronH", **{**NEMOTRON3, "prompts": ((30, 24, 0),)}, n_shared_experts=2,
         layers_block_type=["moe", FULL, MAMBA]),
    case("nemotron-h-latent", "NemotronH", **{**NEMOTRON3, "n_routed_experts": 9}, moe_latent_size=12, mlp_bias=True,
         layers_block_type=["moe", MAMBA, FULL, "mlp", FULL, "moe"], n_group=3, topk_group=2, norm_topk_prob=False),
    case("nemotron-h-joined", "NemotronH", joined=True, **{**NEMOTRON3, "prompts": ((30, 24, 0),)}, moe_latent_size=24,
         layers_block_type=[FULL, "moe", MAMBA], tie_word_embeddings=True),
]

# Also with long prompts.
LONG = ("llama", "opt", "mistral-window", "gemma3", "qwen3-moe", "gpt-oss", "glm4-moe", "llama4", "deepseek-v2", "deepseek-v3",
        "qwen3-next", "qwen3.5", "qwen3.5-moe", "lfm2", "lfm2-moe", "gemma4", "gemma4-input", "gemma3n", "granite-hybrid-dense",
        "nemotron-h", "nemotron-h-moe", "falcon-h1")
for each in CASES:
    if each["name"] in LONG:
        each["prompts"] = (*each["prompts"], (300, 24, 0), (600, 24, 0))
        each["config"]["max_position_embeddings"] = 1024
        rope = each["config"].get("rope_parameters", {})
        if rope.get("rope_type") == "yarn":
            each["config"]["rope_parameters"] = {**rope, "factor": 32.0}

# Further classes that see, of whose text parts the families are above.
ONE = ((30, 24, 0),)
GLM_VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=14, image_size=28)
CASES += [
    case("sees-glm4v-moe", "Glm4vMoe", sees=GLM_VISION, tie_word_embeddings=False, attention_bias=True, **{**GLM_MOE, "prompts": ONE,
         "rope_parameters": dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1])}),
    case("sees-lfm2-vl", "Lfm2Vl", sees=dict(VISION, model_type="siglip2_vision_model", num_patches=16), model_type="lfm2",
         **{**LFM2, "prompts": ONE}, layer_types=["conv", FULL, "conv", FULL], block_multiple_of=16),
    case("sees-glm4v", "Glm4v", sees=GLM_VISION, tie_word_embeddings=False, prompts=ONE,
         rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0])),
    # transformers leaves the scale of this one's logits out, vLLM does not
    case("sees-nemotron-omni", "NemotronH_Omni_Reasoning_V3", prompts=ONE, sees=dict(VISION, model_type="radio", video_temporal_patch_size=2),
         outer=dict(vision_hidden_size=16, projector_hidden_size=16), model_type="nemotron_h", layers_block_type=[MAMBA, FULL], num_hidden_layers=2,
         head_dim=8, mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=8, n_groups=2, tie_word_embeddings=False),
    case("sees-cohere2", "Cohere2Vision", prompts=ONE, sees=VISION, outer=dict(alignment_intermediate_size=16),
         model_type="cohere2", num_hidden_layers=4, sliding_window=12, logit_scale=1.0),
    case("sees-qwen3-vl-moe", "Qwen3VLMoe", prompts=ONE, sees=dict(
         depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=14,
         num_position_embeddings=16, deepstack_visual_indexes=[0]), head_dim=8, tie_word_embeddings=False, num_experts=6,
         num_local_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
         rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 1, 1], mrope_interleaved=True)),
    case("sees-exaone4.5", "Exaone4_5_", prompts=ONE, sees=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2,
         num_key_value_heads=2, out_hidden_size=32, fullatt_block_indexes=[0]), model_type="exaone4", num_hidden_layers=4,
         sliding_window=12, tie_word_embeddings=False),
]

# Whose names, or keys, differ from those of the others.
SECTIONS = dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 1, 1])
AUDIO = dict(d_model=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, output_dim=32, max_source_positions=16)
CASES += [
    case("sees-smolvlm", "SmolVLM", prompts=ONE, sees=dict(VISION, model_type="smolvlm_vision"), model_type="llama",
         tie_word_embeddings=False),
    case("sees-idefics2", "Idefics2", prompts=ONE, sees=dict(VISION, model_type="idefics2_vision"),
         outer=dict(perceiver_config=dict(hidden_size=32, resampler_n_latents=4, resampler_depth=1, resampler_n_heads=2,
                                          resampler_head_dim=8, num_key_value_heads=1)), model_type="mistral", head_dim=8,
         tie_word_embeddings=False),
    case("sees-deepseek-vl", "DeepseekVL", prompts=ONE, sees=VISION, model_type="llama", tie_word_embeddings=False),
    case("sees-video-llama3", "VideoLlama3", prompts=ONE, sees=dict(VISION, model_type="video_llama_3_vision"),
         model_type="qwen2"),
    case("sees-minicpm", "MiniCPMV4_6", prompts=ONE, sees=dict(VISION, model_type="minicpmv4_6_vision"),
         model_type="qwen3_5_text", **{k: v for k, v in HYBRID.items() if k != "prompts"}),
    case("sees-glm-ocr", "GlmOcr", prompts=ONE, sees=GLM_VISION, model_type="glm_ocr_text", tie_word_embeddings=False,
         rope_parameters=dict(SECTIONS, partial_rotary_factor=1.0)),
    case("sees-paddleocr", "PaddleOCRVL", prompts=ONE, sees=dict(VISION, num_key_value_heads=2),
         model_type="paddleocr_vl_text", head_dim=8, rope_parameters=SECTIONS),
    case("sees-granite-docling", "GraniteDocling", prompts=ONE, sees=dict(VISION, model_type="granite_docling_vision",
                                                                       out_hidden_size=32),
         model_type="granite_docling_text", embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.6,
         logits_scaling=2.5),
    case("sees-hunyuan", "HunYuanVL", prompts=ONE, sees=dict(VISION, out_hidden_size=32), model_type="hunyuan_vl_text",
         head_dim=16, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0, beta_fast=32,
                                           beta_slow=1, mscale=1.0, mscale_all_dim=1.0, mrope_section=[2, 2, 2, 2])),
    case("sees-qwen2.5-omni", "Qwen2_5OmniThinker", prompts=ONE, sees=QWEN_VISION, outer=dict(audio_config=AUDIO),
         rope_parameters=SECTIONS, tie_word_embeddings=False),
    case("sees-qwen3-omni", "Qwen3OmniMoeThinker", prompts=ONE, sees=dict(
         QWEN_VISION, deepstack_visual_indexes=[0]),
         outer=dict(audio_config=dict(AUDIO, num_hidden_layers=1, downsample_hidden_size=8)), num_experts=6, num_experts_per_tok=3,
         moe_intermediate_size=20, rope_parameters=dict(SECTIONS, mrope_interleaved=True), tie_word_embeddings=False),
]

CASES += [
    case("hyperclovax", "HyperCLOVAX", prompts=SHORT, head_dim=16, embedding_multiplier=2.0, attention_multiplier=0.3,
         residual_multiplier=0.7, logits_scaling=0.5),
    case("hyperclovax-plain", "HyperCLOVAX", prompts=ONE, use_post_norm=False, attention_bias=True, mlp_bias=True,
         tie_word_embeddings=True),
    case("hy-v3", "HYV3", prompts=SHORT, num_hidden_layers=3, head_dim=16, num_experts=6, num_experts_per_tok=2,
         moe_intermediate_size=20, num_shared_experts=2, router_scaling_factor=2.5),
    case("granite-swa", "GraniteSWA", prompts=SHORT, num_hidden_layers=5, sliding_window=12, attention_multiplier=0.4,
         layer_rope_theta=[0, 10000.0, 10000.0, 0, 500000.0], embedding_multiplier=2.0, logits_scaling=2.0),
    case("granite-moe-swa", "GraniteMoeSWA", prompts=SHORT, num_hidden_layers=5, sliding_window=12, attention_multiplier=0.4,
         layer_rope_theta=[0, 10000.0, 10000.0, 0, 500000.0], num_local_experts=4, num_experts_per_tok=2,
         intermediate_size=24, shared_intermediate_size=28, logits_scaling=2.0),
    case("mellum", "Mellum", prompts=SHORT, num_hidden_layers=4, head_dim=16, sliding_window=12, num_experts=6,
         num_local_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, layer_types=[SLIDING, FULL] * 2,
         mlp_layer_types=["dense", "sparse", "sparse", "sparse"], rope_parameters={
             FULL: dict(YARN, rope_theta=5e5), SLIDING: dict(rope_type="default", rope_theta=10000.0)}),
    case("youtu", "Youtu", prompts=SHORT, num_key_value_heads=4, kv_lora_rank=12, q_lora_rank=20, qk_rope_head_dim=8,
         qk_nope_head_dim=16, v_head_dim=12),
]

MINICPM3 = dict(num_hidden_layers=3, num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=20, qk_nope_head_dim=12,
                qk_rope_head_dim=8, scale_emb=3.0, dim_model_base=24)
CASES += [
    case("helium", "Helium", prompts=SHORT, num_key_value_heads=4, head_dim=8, rms_norm_eps=1e-8),
    case("jais2", "Jais2", prompts=SHORT, rope_parameters=dict(rope_type="default", rope_theta=5e5)),
    case("jais2-plain", "Jais2", prompts=ONE, attention_bias=False, mlp_bias=False, tie_word_embeddings=True),
    case("flex-olmo", "FlexOlmo", prompts=SHORT, num_experts=5, num_experts_per_tok=3, intermediate_size=24),
    case("flex-olmo-joined", "FlexOlmo", joined=True, prompts=ONE, num_experts=4, num_experts_per_tok=2,
         intermediate_size=24, norm_topk_prob=True, attention_bias=True),
    case("minicpm3", "MiniCPM3", prompts=((5, 24, 0), (50, 24, 0)), **MINICPM3, v_head_dim=10, scale_depth=1.4,
         original_max_position_embeddings=256, rope_parameters=dict(
             rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=256,
             short_factor=[1.0, 1.1, 1.25, 1.4], long_factor=[1.05, 1.8, 3.1, 4.0])),
    case("minicpm3-plain", "MiniCPM3", prompts=ONE, **{**MINICPM3, "q_lora_rank": None, "dim_model_base": None},
         scale_depth=None, attention_bias=True, tie_word_embeddings=False),
]

COHERE_MOE = dict(prompts=SHORT, num_hidden_layers=5, head_dim=8, intermediate_size=20, sliding_window=12, num_experts=6,
                  num_experts_per_tok=3, logit_scale=0.25)
CASES += [
    case("llama-llama3-step", "Llama", prompts=SHORT, rope_parameters=dict(LLAMA3, low_freq_factor=1.0, high_freq_factor=1.0)),
    case("iquestcoder", "IQuestCoder", prompts=ONE, head_dim=16),
    case("internlm3", "InternLM3", prompts=SHORT, head_dim=12, attention_bias=True, mlp_bias=True),
    case("vaultgemma", "VaultGemma", prompts=SHORT, head_dim=16, query_pre_attn_scalar=24, sliding_window=14,
         attn_logit_softcapping=3.0, final_logit_softcapping=20.0, num_hidden_layers=3),
    case("axk1", "AXK1", **{k: v for k, v in DEEPSEEK_V3.items() if k != "first_k_dense_replace"},
         routed_scaling_factor=2.5, mlp_layer_types=["dense", "sparse", "sparse"]),
    case("cohere2-moe", "Cohere2Moe", **COHERE_MOE, layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
         mlp_layer_types=["dense", "dense", "sparse", "sparse", "sparse"], prefix_dense_intermediate_size=44,
         num_shared_experts=2),
    case("cohere2-moe-sigmoid", "Cohere2Moe", joined=True, **COHERE_MOE, first_k_dense_replace=1,
         prefix_dense_sliding_window_pattern=2, expert_selection_fn="sigmoid", rms_norm_eps=1e-5, num_shared_experts=1,
         shared_expert_combination_strategy="sum", sliding_window_pattern=2, attention_bias=True),
    # a head's width by another name than the file's, and none for what queries come out of
    case("minicpm3-narrow", "MiniCPM3", prompts=ONE, **{**MINICPM3, "qk_rope_head_dim": 4}, scale_depth=1.4),
]

# What many try first: norms less the mean, biases, feed-forwards without a gate.
CASES += [
    case("gpt-neox", "GPTNeoX", prompts=SHORT, num_key_value_heads=4),
    case("gpt-neox-serial", "GPTNeoX", prompts=ONE, num_key_value_heads=4, use_parallel_residual=False, attention_bias=False,
         hidden_act="gelu_new", tie_word_embeddings=True, rope_parameters=dict(
             rope_type="default", rope_theta=25000.0, partial_rotary_factor=1.0)),
    case("phi", "Phi", prompts=SHORT, num_key_value_heads=4),
    case("phi-norms", "Phi", prompts=ONE, qk_layernorm=True, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)),
]

# What came first: a vector for each position, or heads that turn in part; norms without weights.
FIRST = ((1, 24, 0), (5, 24, 0), (50, 24, 0))
CASES += [
    case("opt", "OPT", prompts=FIRST),
    case("opt-350m", "OPT", prompts=ONE, do_layer_norm_before=False, word_embed_proj_dim=20),
    case("opt-galactica", "OPT", prompts=ONE, activation_function="gelu", enable_bias=False,
         layer_norm_elementwise_affine=False),
    case("gpt2", "GPT2", prompts=SHORT),
    case("gpt2-layers", "GPT2", prompts=ONE, scale_attn_by_inverse_layer_idx=True, activation_function="relu",
         tie_word_embeddings=False),
    case("gpt-bigcode", "GPTBigCode", prompts=SHORT),
    case("gpt-bigcode-heads", "GPTBigCode", prompts=ONE, multi_query=False),
    case("gpt-neo", "GPTNeo", prompts=SHORT, attention_types=[[["global", "local"], 1]], window_size=12),
    case("gptj", "GPTJ", prompts=SHORT, rotary_dim=4),
    case("codegen", "CodeGen", prompts=ONE, rotary_dim=8),
    case("falcon", "Falcon", prompts=SHORT),
    case("falcon-40b", "Falcon", prompts=SHORT, new_decoder_architecture=True),
    case("falcon-11b", "Falcon", prompts=ONE, new_decoder_architecture=True, num_ln_in_parallel_attn=1),
    case("falcon-serial", "Falcon", prompts=ONE, num_key_value_heads=4, parallel_attn=False, multi_query=False, bias=True),
    case("persimmon", "Persimmon", prompts=SHORT),
    case("olmo", "Olmo", prompts=SHORT),
    case("olmo-clip", "Olmo", prompts=ONE, clip_qkv=0.7, tie_word_embeddings=True),
    case("olmoe-clip", "Olmoe", prompts=ONE, num_experts=5, num_experts_per_tok=2, intermediate_size=24, clip_qkv=0.7),
    case("nanochat", "NanoChat", prompts=SHORT),
    case("served-gpt2", "GPT2", words="bytes", prompts=((20, 12, 0),), vocab_size=320),
]

# Gemma 3n: streams beside each other, sparse feed-forwards, layers that read others' keys and values.
GEMMA3N = dict(prompts=((1, 24, 0), (5, 24, 0), (50, 24, 0)), head_dim=8, num_hidden_layers=5, sliding_window=10,
               layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL], hidden_size_per_layer_input=6,
               vocab_size_per_layer_input=VOCAB - 8, num_kv_shared_layers=2, laurel_rank=4,
               activation_sparsity_pattern=[0.8, 0.5, 0.0, 0.0, 0.0])
CASES += [
    case("gemma3n", "Gemma3nText", **GEMMA3N),
    case("gemma3n-three", "Gemma3nText", **{
        **GEMMA3N, "prompts": ONE, "num_kv_shared_layers": 0, "num_hidden_layers": 3, "layer_types": [FULL, SLIDING, FULL],
        "activation_sparsity_pattern": [0.0, 0.7, 0.0]}, altup_num_inputs=3, altup_active_idx=1, altup_correct_scale=False,
         attention_bias=True, tie_word_embeddings=False),
]

ERNIE_VL = dict(sees=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=14), prompts=ONE,
                model_type="ernie4_5_vl_moe_text", num_hidden_layers=3, moe_num_experts=6, moe_k=3,
                moe_intermediate_size=[20, 12], moe_num_shared_experts=2,
                rope_parameters=dict(rope_type="default", rope_theta=500000.0, mrope_section=[1, 1, 2]))
CASES += [case("sees-ernie", "Ernie4_5_VLMoe", **ERNIE_VL),
          case("sees-ernie-joined", "Ernie4_5_VLMoe", joined=True, **{**ERNIE_VL, "moe_num_shared_experts": 0, "use_bias": True})]

MOE = dict(head_dim=16, num_experts=4, num_local_experts=4, num_experts_per_tok=2,
           moe_intermediate_size=32, norm_topk_prob=True)

# What each transformers 4 writes again, where its class or its files differ: not rope whose cached keys
# depend on the length, nor LFM2 MoE, which came with 5. Yarn is of the later one: 4.49 took
# max_position_embeddings for the original length, which only served checkpoints where these are one.
OLDER = {
    "4.49": ["llama", "llama-llama3", "llama-linear", "llama-bias", "mistral", "mistral-window", "qwen2",
             "phi3", "phi3-longrope", "gemma", "gemma2", "olmo2", "granite", "mixtral",
             "olmoe", "granite-moe", "served-llama", "served-qwen2"],
    "4.57": ["qwen2-window", "qwen2-yarn", "qwen3", "qwen3-yarn", "ministral", "gemma3", "smollm3",
             "smollm3-window", "olmo3", "qwen3-moe", "qwen3-moe-plain", "gpt-oss", "served-llama",
             "sees-gemma3", "sees-qwen2.5-vl", "glm4", "glm4-moe", "ernie-moe", "exaone4", "hunyuan", "llama4",
             "deepseek-v2-groups", "deepseek-v3", "qwen3-next", "qwen2-moe", "lfm2", "granite-hybrid", "hunyuan-moe",
             "dots1", "arcee", "granite-moe-shared", "falcon-h1", "glm", "ernie", "seed-oss", "deepseek-v2",
             "opt", "opt-350m", "gpt2", "gpt-bigcode", "gpt-neo", "gptj", "codegen", "falcon", "falcon-40b", "persimmon",
             "olmo"],
}


def moe_case(how, **config):
    return case("quant-moe-" + how, "Qwen3Moe", quant=how, prompts=((30, 24, 0),), **{**MOE, **config},
                spelled4={"num_experts": 4, "num_local_experts": None})


MLA_FORM = dict(DEEPSEEK, prompts=ONE, num_hidden_layers=2, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=32,
                v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)


# Families beside Llama's, of sizes that all forms can pack: the products of each kind of layer.
FORMS = {
    "qwen3.5": ("Qwen3_5Text", {**HYBRID, "prompts": ONE, "linear_value_head_dim": 16, "linear_key_head_dim": 16,
                                "num_hidden_layers": 2, "layer_types": [LINEAR, FULL]}),
    "glm4-moe": ("Glm4Moe", {**GLM_MOE, "prompts": ONE, "moe_intermediate_size": 32, "num_hidden_layers": 2,
                             "n_routed_experts": 4, "use_qk_norm": True}),
    "gemma4": ("Gemma4Text", {**GEMMA4_INPUT, "prompts": ONE, "hidden_size_per_layer_input": 16, "num_hidden_layers": 4,
                              "head_dim": 16, "global_head_dim": 32, "layer_types": [SLIDING, FULL] * 2,
                              "num_kv_shared_layers": 2}),
    "gemma3n": ("Gemma3nText", {**GEMMA3N, "prompts": ONE, "hidden_size_per_layer_input": 16, "laurel_rank": 16,
                                "head_dim": 16, "num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2,
                                "activation_sparsity_pattern": [0.6, 0.0, 0.0, 0.0]}),
    "granite4": ("GraniteMoeHybrid", {**GRANITE4, "prompts": ONE, "num_hidden_layers": 2, "layer_types": [MAMBA, FULL],
                                      "num_local_experts": 0, "mamba_n_heads": 32, "mamba_d_state": 16,
                                      "shared_intermediate_size": 48}),
    "nemotron3": ("NemotronH", {**NEMOTRON3, "prompts": ONE, "layers_block_type": [MAMBA, "moe", FULL, "mlp"],
                                "mamba_num_heads": 16, "moe_intermediate_size": 32,
                                "moe_shared_expert_intermediate_size": 48, "n_routed_experts": 4}),
    "lfm2": ("Lfm2", {**LFM2, "prompts": ONE, "num_hidden_layers": 2, "layer_types": ["conv", FULL],
                      "block_multiple_of": 16}),
    "cohere2": ("Cohere2", {"prompts": ONE, "num_hidden_layers": 2, "layer_types": [SLIDING, FULL], "sliding_window": 12,
                            "logit_scale": 0.25}),
    "afmoe": ("Afmoe", {"prompts": ONE, "head_dim": 16, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
                        "moe_intermediate_size": 32, "num_shared_experts": 1, "num_dense_layers": 1, "sliding_window": 12,
                        "layer_types": [SLIDING, FULL], "mup_enabled": True}),
    "apertus": ("Apertus", {"prompts": ONE, "rope_parameters": LLAMA3}),
    "llama4": ("Llama4Text", {**LLAMA4, "prompts": ONE, "num_hidden_layers": 2, "head_dim": 16, "intermediate_size": 32,
                              "intermediate_size_mlp": 48, "num_experts_per_tok": 1}),
}


# Mixtures whose experts have names of their own, which llm-compressor gives those of most families.
FORMS |= {
    "mixtral": ("Mixtral", {"prompts": ONE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 21}),
    "minimax-m2": ("MiniMaxM2", {"prompts": ONE, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
                                 "rope_parameters": dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5)}),
    "lfm2-moe": ("Lfm2Moe", {**LFM2, "prompts": ONE, "num_hidden_layers": 2, "layer_types": ["conv", FULL],
                             "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
                             "moe_intermediate_size": 32, "num_dense_layers": 1}),
    "gemma4-moe": ("Gemma4Text", {**GEMMA4, "prompts": ONE, "num_hidden_layers": 2, "head_dim": 16, "global_head_dim": 32,
                                  "layer_types": [SLIDING, FULL], "enable_moe_block": True, "num_experts": 4,
                                  "top_k_experts": 2, "moe_intermediate_size": 32}),
    "granite-moe": ("GraniteMoe", {"prompts": ONE, "num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 2.0}),
}


# The rest of the families that are published quantized.
HYBRID_MOE_FORM = {**HYBRID_MOE, "prompts": ONE, "num_hidden_layers": 2, "layer_types": [LINEAR, FULL],
                   "linear_value_head_dim": 16, "linear_key_head_dim": 16, "moe_intermediate_size": 32,
                   "shared_expert_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4,
                   "num_experts_per_tok": 2}
FORMS |= {
    "qwen3-next": ("Qwen3Next", HYBRID_MOE_FORM),
    "qwen3.5-moe": ("Qwen3_5MoeText", HYBRID_MOE_FORM),
    "glm4": ("Glm4", {"prompts": ONE, "head_dim": 16, "attention_bias": True}),
    "deepseek-v2": ("DeepseekV2", {**MLA_FORM, "q_lora_rank": None, "n_shared_experts": 2, "routed_scaling_factor": 1.5}),
    "deepseek-v3": ("DeepseekV3", {**MLA_FORM, "q_lora_rank": 32, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}),
    "nemotron-h": ("NemotronH", {**NEMOTRON_H, "prompts": ONE, "layers_block_type": [MAMBA, "mlp", FULL],
                                 "mamba_num_heads": 16, "n_groups": 2}),
    "ministral3": ("Ministral3", {**MINISTRAL3, "prompts": ONE, "head_dim": 16}),
    "seed-oss": ("SeedOss", {"prompts": ONE, "head_dim": 16, "attention_out_bias": True}),
    "ernie": ("Ernie4_5", {"prompts": ONE, "head_dim": 16}),
    "ernie-moe": ("Ernie4_5_Moe", {"prompts": ONE, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32,
                                   "moe_num_shared_experts": 1}),
    "exaone4": ("Exaone4", {"prompts": ONE, "head_dim": 16, "layer_types": [SLIDING, FULL], "sliding_window": 12}),
    "hunyuan": ("HunYuanDenseV1", {"prompts": ONE, "head_dim": 16, "tie_word_embeddings": True}),
    "hunyuan-moe": ("HunYuanMoEV1", {"prompts": ONE, "head_dim": 16, "num_experts": 4, "moe_topk": 2,
                                     "intermediate_size": 32}),
}


# Which of them are kept; all families' of the packers are made by `make check-hf`.
KEPT_FORMS = {"gemma3n": ("w4a16", "fp8-row"), "qwen3.5": ("fp8-block", "awq", "w4a16"), "glm4-moe": ("fp8-block", "fp8-row"), "gemma4": ("w4a16", "gptq"),
              "granite4": ("fp8-row", "awq"), "nemotron3": ("modelopt", "gptq", "nvfp4"), "lfm2": ("w4a16", "fp8-block"),
              "llama4": ("w4a16", "fp8-row"), "cohere2": ("awq", "fp8-row"), "afmoe": ("fp8-block", "w4a16"),
              "apertus": ("w4a16", "fp8-row"), "mixtral": ("w4a16",), "minimax-m2": ("fp8-row",),
              "lfm2-moe": ("fp8-row",), "gemma4-moe": ("w4a16",), "granite-moe": ("fp8-row",), "qwen3-next": ("fp8-block",),
              "glm4": ("w4a16",), "deepseek-v2": ("w4a16",), "ministral3": ("fp8-row",), "seed-oss": ("awq",),
              "ernie-moe": ("fp8-row",), "exaone4": ("awq",), "hunyuan": ("gptq",), "hunyuan-moe": ("gptq",)}


def form_cases(prefix, forms, unit=1):
    """forms: of each family; unit: of what products have as columns."""
    widths = ("hidden_size", "intermediate_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
              "shared_intermediate_size", "intermediate_size_mlp", "hidden_size_per_layer_input", "block_multiple_of",
              "linear_value_head_dim")
    cases = []
    for family, (cls, config) in FORMS.items():
        c = {**SMALL, **config, **({"hidden_size": 64} if unit > 1 else {})}
        c.update({k: -(-c[k] // unit) * unit for k in widths if k in c})
        cases += [case(f"{prefix}{family}-{how}", cls, quant=how, **c) for how in forms.get(family, ())]
    return cases


def packer_cases(directory):
    """The same by the libraries of the formats (packers.py)."""
    import packers
    import quantize
    packers.load(directory)
    quantize.FORMATS.update(packers.formats())
    return form_cases("packer-", dict.fromkeys(
        FORMS, ("ct-w4a16", "ct-fp8", "gptq-4", "awq-gemm")), packers.GROUP) + [
        case("packer-" + how, "Llama", quant=how, prompts=((30, 24, 0),), **packers.SIZES)
            for how in packers.formats()] + [
        {**moe_case(how, **packers.SIZES), "name": "packer-moe-" + how}
        for how in ("ct-w4a16", "ct-int8", "ct-fp8", "ct-nvfp4", "gptq-4", "awq-gemm")]


def quantized_cases():
    """What plain functions pack (quantize.py)."""
    import quantize
    cases = form_cases("quant-", KEPT_FORMS)
    cases += [moe_case(how) for how in ("gptq", "w8a8", "fp8-row")]
    cases += [{**moe_case(how), "joined": True} for how in ("w4a16-joined", "w8a8-joined")]
    cases += [case("quant-deepseek-fp8", "DeepseekV3", quant="fp8-block", **{**DEEPSEEK_V3, "prompts": ((30, 24, 0),)})]
    cases += [case("quant-qwen3.5-fp8", "Qwen3_5MoeText", quant="fp8-block", **{**HYBRID_MOE, "prompts": ((30, 24, 0),)}),
              case("quant-qwen3.5-fp8-joined", "Qwen3_5MoeText", quant="fp8-joined", joined=True, **{**HYBRID_MOE, "prompts": ((30, 24, 0),)}),
              case("quant-qwen3-next-gptq", "Qwen3Next", quant="gptq", **{
                  **HYBRID_MOE, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
                  "linear_value_head_dim": 8, "num_hidden_layers": 2, "prompts": ((30, 24, 0),)},
                   layer_types=[LINEAR, FULL])]
    cases += [case("quant-sees-qwen3.5-w4a16", "Qwen3_5", quant="w4a16", sees=QWEN_VISION, tie_word_embeddings=True,
                   **{**FORMS["qwen3.5"][1], "rope_parameters": MROPE})]
    cases += [case("quant-" + how, "Qwen2" if how == "gptq-v2" else "Llama", quant=how,
                   prompts=((30, 24, 0),)) for how in quantize.FORMATS if how != "mxfp4" and not how.endswith("-joined")]
    return cases
