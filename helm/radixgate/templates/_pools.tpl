{{/* The pools of engines, each completed by workers.poolDefaults, as YAML. */}}
{{- define "radixgate.pools" -}}
{{- if not (hasKey .Values "completedPools") -}}
{{- $pools := list -}}
{{- range .Values.workers.pools -}}
{{- $pool := mergeOverwrite (deepCopy $.Values.workers.poolDefaults) (deepCopy .) -}}
{{- $image := get $.Values.workers.engineImages $pool.engine -}}
{{- $_ := set $pool "image" (mergeOverwrite (deepCopy $image) (default dict .image)) -}}
{{- $gpus := $pool.gpu.count -}}
{{- if kindIs "invalid" $gpus -}}
{{- $gpus = div (mul $pool.tensorParallel $pool.dataParallel) $pool.nodes -}}
{{- end -}}
{{- $_ := set $pool.gpu "count" (int $gpus) -}}
{{- $_ := set $pool "component" (printf "pool-%s" $pool.name) -}}
{{- $long := include "radixgate.fullname" $ | trunc (int (sub 46 (len $pool.name))) | trimSuffix "-" -}}
{{- $_ := set $pool "fullname" (printf "%s-pool-%s" $long $pool.name) -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- $_ := set .Values "completedPools" $pools -}}
{{- end -}}
{{- toYaml .Values.completedPools -}}
{{- end -}}

{{/* The labels by which the Service and an InferencePool choose what serves HTTP: not the further nodes of a group. */}}
{{- define "radixgate.serving" -}}
radixgate/serves: "true"
{{- end -}}

{{/* The ports of a pool's engines besides HTTP: KV events, their replay and the load feed, one for each rank. */}}
{{- define "radixgate.poolLastPort" -}}
{{- add 30000 (mul 3 .dataParallel) -}}
{{- end -}}

{{/* Directory or id of the model, as the engine takes it. */}}
{{- define "radixgate.poolModel" -}}
{{- if eq .model.source "hub" -}}
{{- .model.path -}}
{{- else -}}
{{- printf "/models/%s" .model.path | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{/*
The flags that turn on what a gateway makes use of, as `radixgate worker --engine` gives them (workers/launching), as a
YAML list of lists. The chart's tests compare them with that command's.
*/}}
{{- define "radixgate.engineFlags" -}}
{{- $pool := . -}}
{{- $vllm := eq $pool.engine "vllm" -}}
{{- $flags := list (list (ternary "--model" "--model-path" $vllm) (include "radixgate.poolModel" $pool)) -}}
{{- $flags = append $flags (list "--served-model-name" $pool.model.name) -}}
{{- $flags = append $flags (list "--host" "0.0.0.0") -}}
{{- $flags = append $flags (list "--port" "30000") -}}
{{- $size := default (ternary 32 16 $vllm) $pool.pageSize | int | toString -}}
{{- $flags = append $flags (list (ternary "--block-size" "--page-size" $vllm) $size) -}}
{{- $events := printf "tcp://*:30001" -}}
{{- $replay := printf "tcp://*:%d" (add 30001 $pool.dataParallel) -}}
{{- if $vllm -}}
{{- $flags = append $flags (list "--enable-prefix-caching") -}}
{{- $flags = append $flags (list "--enable-prompt-tokens-details") -}}
{{- $flags = append $flags (list "--scheduling-policy" "priority") -}}
{{- if ne $pool.role "both" -}}
{{- $flags = append $flags (list "--kv-transfer-config" `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`) -}}
{{- end -}}
{{- $flags = append $flags (list "--kv-events-config" (printf `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}` $events $replay)) -}}
{{- else -}}
{{- $flags = append $flags (list "--enable-cache-report") -}}
{{- $flags = append $flags (list "--enable-metrics") -}}
{{- $flags = append $flags (list "--enable-priority-scheduling") -}}
{{- if ne $pool.role "both" -}}
{{- $flags = append $flags (list "--disaggregation-mode" $pool.role) -}}
{{- $flags = append $flags (list "--disaggregation-bootstrap-port" "8998") -}}
{{- end -}}
{{- $flags = append $flags (list "--kv-events-config" (printf `{"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}` $events $replay)) -}}
{{- $flags = append $flags (list "--load-publish-endpoint" (printf "tcp://*:%d" (add 30001 (mul 2 $pool.dataParallel)))) -}}
{{- end -}}
{{- toYaml $flags -}}
{{- end -}}

{{/* Flags for sizes, adapters, several nodes and the API key, then those of the values, as a YAML list. */}}
{{- define "radixgate.poolFlags" -}}
{{- $pool := index . 0 -}}
{{- $follower := index . 1 -}}
{{- $vllm := eq $pool.engine "vllm" -}}
{{- $more := list -}}
{{- if gt (int $pool.tensorParallel) 1 -}}
{{- $more = concat $more (list "--tensor-parallel-size" (toString $pool.tensorParallel)) -}}
{{- end -}}
{{- if gt (int $pool.dataParallel) 1 -}}
{{- $more = concat $more (list "--data-parallel-size" (toString $pool.dataParallel)) -}}
{{- end -}}
{{- if gt (int $pool.nodes) 1 -}}
{{- $more = concat $more (list "--nnodes" (toString $pool.nodes) "--node-rank" (ternary "$(LWS_WORKER_INDEX)" "0" $follower)) -}}
{{- if $vllm -}}
{{- $more = concat $more (list "--master-addr" "$(LWS_LEADER_ADDRESS)") (ternary (list "--headless") list $follower) -}}
{{- else -}}
{{- $more = concat $more (list "--dist-init-addr" "$(LWS_LEADER_ADDRESS):20000") -}}
{{- end -}}
{{- end -}}
{{- with $pool.lora -}}
{{- $more = concat $more (list "--enable-lora" (ternary "--lora-modules" "--lora-paths" $vllm)) -}}
{{- range . -}}
{{- $more = append $more (printf "%s=%s" .name .path) -}}
{{- end -}}
{{- end -}}
{{- if and (not $vllm) (not $follower) -}}
{{- $more = concat $more (list "--api-key" "$(RADIXGATE_WORKER_KEY)") -}}
{{- end -}}
{{- toYaml (concat $more $pool.extraArgs) -}}
{{- end -}}

{{/* Command line of an engine. Takes (list pool follower). Flags that the values name too are not added. */}}
{{- define "radixgate.poolArgs" -}}
{{- $pool := index . 0 -}}
{{- $more := include "radixgate.poolFlags" . | fromYamlArray -}}
{{- $given := list -}}
{{- range $more -}}
{{- $given = append $given (splitList "=" . | first) -}}
{{- end -}}
{{- $words := list "-m" (get (dict "sglang" "sglang.launch_server" "vllm" "vllm.entrypoints.openai.api_server") $pool.engine) -}}
{{- $followed := true -}}
{{- range include "radixgate.engineFlags" $pool | fromYamlArray -}}
{{- $flag := first . -}}
{{- /* The engine's load feed is found through its KV events. */ -}}
{{- if and (has $flag $given) (eq $flag "--kv-events-config") -}}{{- $followed = false -}}{{- end -}}
{{- if not (or (has $flag $given) (and (eq $flag "--load-publish-endpoint") (not $followed))) -}}
{{- $words = concat $words . -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $words $more) -}}
{{- end -}}

{{/* Pod template of a pool's engine. Takes (list $ pool follower). */}}
{{- define "radixgate.poolTemplate" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $follower := index . 2 -}}
{{- $hub := eq $pool.model.source "hub" -}}
{{- $resources := deepCopy $pool.resources -}}
{{- if $pool.gpu.count -}}
{{- $resources = mergeOverwrite $resources (dict "limits" (dict $pool.gpu.resource $pool.gpu.count)) -}}
{{- end -}}
{{- $labels := deepCopy $pool.podLabels -}}
{{- if not $follower -}}
{{- $labels = merge (include "radixgate.serving" $root | fromYaml) $labels -}}
{{- end -}}
metadata:
  labels:
    {{- include "radixgate.podLabels" (list $root $pool.component $labels) | nindent 4 }}
  annotations:
    checksum/worker-key: {{ include "radixgate.secretChecksum" (list $root $root.Values.workers.apiKey "worker-key") }}
    {{- with $pool.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "radixgate.pod" (list $root $pool) | nindent 2 }}
  {{- include "radixgate.spread" (list $root $pool $pool.component) | nindent 2 }}
  {{- with $pool.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  # The hook before the end waits until no request runs; the engine gets a minute more.
  terminationGracePeriodSeconds: {{ add $pool.drainSeconds 60 }}
  {{- with $pool.extraInitContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: engine
      image: {{ include "radixgate.image" (list $root $pool.image) }}
      imagePullPolicy: {{ $pool.image.pullPolicy }}
      command: [python3]
      args:
        {{- include "radixgate.poolArgs" (list $pool $follower) | nindent 8 }}
      env:
        # Engines write caches below the home directory, and ask for the name of the user.
        - {name: HOME, value: /tmp}
        - {name: USER, value: engine}
        - {name: HF_HOME, value: /cache}
        {{- if not $hub }}
        - {name: HF_HUB_OFFLINE, value: "1"}
        {{- end }}
        {{- if $pool.model.token.existingSecret }}
        {{- include "radixgate.secretEnv" (list $root "HF_TOKEN" $pool.model.token "token") | nindent 8 }}
        {{- end }}
        {{- include "radixgate.secretEnv" (list $root (ternary "VLLM_API_KEY" "RADIXGATE_WORKER_KEY" (eq $pool.engine "vllm")) $root.Values.workers.apiKey "worker-key") | nindent 8 }}
        {{- if and (eq $pool.engine "vllm") (ne $pool.role "both") }}
        # Where the other half of a pair asks for KV blocks.
        - name: VLLM_NIXL_SIDE_CHANNEL_HOST
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- end }}
        {{- with $pool.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $pool.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if not $follower }}
      ports:
        - {name: http, containerPort: 30000}
        - {name: kv-events, containerPort: 30001}
      # No key is needed for /health. It answers once the model is loaded.
      startupProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ div $pool.startupSeconds 10 }}
      readinessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      # Only a new process repairs an engine that has failed; one that is busy answers late.
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 20
        timeoutSeconds: 20
        failureThreshold: 6
      lifecycle:
        preStop:
          exec:
            command:
              - python3
              - -c
              - |
                {{- $root.Files.Get "files/engine_drain.py" | nindent 16 }}
              - http://127.0.0.1:30000/metrics
              - {{ $pool.drainSeconds | quote }}
      {{- end }}
      resources:
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- toYaml $pool.securityContext | nindent 8 }}
      volumeMounts:
        {{- if not $hub }}
        - {name: models, mountPath: /models, readOnly: true{{ with $pool.model.subPath }}, subPath: {{ . | quote }}{{ end }}}
        {{- end }}
        - {name: cache, mountPath: /cache}
        - {name: tmp, mountPath: /tmp}
        # Processes of an engine exchange tensors through shared memory.
        - {name: shared-memory, mountPath: /dev/shm}
        {{- with $pool.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $pool.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- if eq $pool.model.source "claim" }}
    - name: models
      persistentVolumeClaim: {claimName: {{ $pool.model.existingClaim }}, readOnly: true}
    {{- else if eq $pool.model.source "hostPath" }}
    - name: models
      hostPath: {path: {{ $pool.model.hostPath | quote }}, type: Directory}
    {{- else if eq $pool.model.source "image" }}
    - name: models
      image: {reference: {{ $pool.model.image | quote }}, pullPolicy: IfNotPresent}
    {{- end }}
    {{- if $pool.cache.existingClaim }}
    - name: cache
      persistentVolumeClaim: {claimName: {{ $pool.cache.existingClaim }}}
    {{- else if not $pool.cache.size }}
    - name: cache
      emptyDir: {}
    {{- end }}
    - name: tmp
      emptyDir: {}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ $pool.sharedMemory }}}
    {{- with $pool.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The names of a pool's model and adapters as a regular expression. */}}
{{- define "radixgate.poolNames" -}}
{{- $names := list (regexQuoteMeta .model.name) -}}
{{- range .lora -}}
{{- $names = append $names (regexQuoteMeta .name) -}}
{{- end -}}
{{- join "|" $names -}}
{{- end -}}
