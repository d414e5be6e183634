"""The execution of a step plan: from a plan to tensors, and from the model's logits to tokens.

model_runner       runs a plan: packing makes its tensors, step_sampling_rows the parameters of each position that
                   is sampled; token_drawing draws the tokens there, and verifies drafts
embedding          embeddings of texts, beside the steps
decode_graphs      decode steps as CUDA graphs: graph_building captures them by cuda_capture, graph_memory plans
                   their memory
step_memory        the memory of the largest step; activations: of one layer
warm_up            compiles the kernels at the start
"""
