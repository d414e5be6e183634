{{/* A Kubernetes quantity of memory in bytes. */}}
{{- define "radixgate.bytes" -}}
{{- if not (kindIs "string" .) -}}
{{- int64 . -}}
{{- else -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- $number := regexFind "^[0-9.]+([eE][0-9]+)?" . -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .)) | int64 -}}
{{- end -}}
{{- end -}}

{{/*
How a gateway divides the limit of its memory, as YAML; empty without a limit. Each process has 192 MiB of its own
(gateway/planning/costs.py), tokenizers of 112 MiB, their caches, two processes that encode long prompts with the same
tokenizers, 8 kB for each of the requests whose details are kept, the index twice (with the caches that it follows, and
what Redis does not have yet), and requests. What the settings leave is divided between index and requests. An embedded
Valkey has the index once more. The index stays below the memory of a bundled Valkey.
*/}}
{{- define "radixgate.memory" -}}
{{- with dig "limits" "memory" "" (default dict .Values.gateway.resources) -}}
{{- $mib := 1048576 -}}
{{- $limit := include "radixgate.bytes" . | int64 -}}
{{- $config := $.Values.config -}}
{{- $tokenizers := 0 -}}
{{- $caches := 0 -}}
{{- range include "radixgate.models" $ | fromYamlArray -}}
{{- if ne (default "text" .tokenizer) "text" -}}
{{- $caches = add $caches (int64 (default (mul 64 $mib) .tokenizer_memory_bytes_max)) -}}
{{- $tokenizers = add $tokenizers (ternary 0 1 (eq .tokenizer "worker")) -}}
{{- end -}}
{{- end -}}
{{- $encoding := ternary (mul 2 (min 640 (add 64 (mul 112 $tokenizers)))) 0 (gt (int $tokenizers) 0) -}}
{{- $details := max 0 (mul 8192 (sub (dig "telemetry" "requests" "kept_max" 500 $config | int64) 500)) -}}
{{- $processes := max 1 (dig "listen" "processes" 1 $config | int64) -}}
{{- $inner := ternary 1 0 (eq $.Values.redis.mode "embedded") -}}
{{- $own := add (mul 192 $mib) (mul $tokenizers 112 $mib) (mul $encoding $mib) $caches $details -}}
{{- $left := sub $limit (add (mul $processes $own) (mul $inner 64 $mib)) -}}
{{- $indexes := add (mul 2 $processes) $inner -}}
{{- $index := dig "index" "memory_bytes_max" -1 $config | int64 -}}
{{- $requests := dig "listen" "memory_bytes_max" -1 $config | int64 -}}
{{- $redis := dig "limits" "memory" "" (default dict $.Values.redis.bundled.resources) -}}
{{- $largest := $limit -}}
{{- if and (eq $.Values.redis.mode "bundled") $redis -}}
{{- $largest = sub (include "radixgate.bytes" $redis | int64) (mul 64 $mib) -}}
{{- end -}}
{{- $least := 0 -}}
{{- if lt $index 0 -}}
{{- $free := ternary (div $left (add $indexes $processes)) (div (sub $left (mul $processes $requests)) $indexes) (lt $requests 0) -}}
{{- $index = min $free $largest -}}
{{- $least = 16777216 -}}
{{- end -}}
{{- $fits := ge $index $least -}}
{{- if lt $requests 0 -}}
{{- $requests = div (sub $left (mul $index $indexes)) $processes -}}
{{- $fits = and $fits (ge $requests 33554432) -}}
{{- end -}}
{{- $fits = and $fits (ge $left (add (mul $index $indexes) (mul $requests $processes))) -}}
{{- $parts := list (printf "%d processes (192 MiB each)" $processes) -}}
{{- if $tokenizers -}}
{{- $parts = append $parts (printf "%d tokenizers (%d MiB in each process)" $tokenizers (add (mul 112 $tokenizers) $encoding)) -}}
{{- end -}}
{{- if $caches -}}
{{- $parts = append $parts (printf "tokenizer_memory_bytes_max (%d MiB in each process)" (div $caches $mib)) -}}
{{- end -}}
{{- if $details -}}
{{- $parts = append $parts (printf "request details (%d MiB in each process)" (div $details $mib)) -}}
{{- end -}}
{{- if $inner -}}
{{- $parts = append $parts "Valkey (64 MiB, and the index)" -}}
{{- end -}}
{{- if gt $index 0 -}}
{{- $parts = append $parts (printf "index.memory_bytes_max twice in each process (%d MiB)" (div (mul 2 $index) $mib)) -}}
{{- end -}}
{{- if gt $requests 0 -}}
{{- $parts = append $parts (printf "listen.memory_bytes_max in each process (%d MiB)" (div $requests $mib)) -}}
{{- end -}}
{{- toYaml (dict "index" $index "requests" $requests "fits" $fits "largest" $largest "parts" $parts) -}}
{{- end -}}
{{- end -}}

{{/* Refuses settings with which the gateway, or the bundled Valkey, may take more memory than its pod has. */}}
{{- define "radixgate.validateMemory" -}}
{{- range .Values.gateway.extraArgs -}}
{{- if regexMatch "--processes|listen.processes|memory_bytes_max" . -}}
{{- fail (printf "radixgate: %s in gateway.extraArgs changes the memory that the chart calculates; set config.listen.processes, or config.index and config.listen." .) -}}
{{- end -}}
{{- end -}}
{{- with include "radixgate.memory" . | fromYaml -}}
{{- if not .fits -}}
{{- fail (printf "radixgate: gateway.resources.limits.memory is %s, too little for a gateway with %s. Raise the limit, or lower these settings." (toString $.Values.gateway.resources.limits.memory) (join ", " .parts)) -}}
{{- end -}}
{{- if gt (int64 .index) (int64 .largest) -}}
{{- fail (printf "radixgate: redis.bundled.resources.limits.memory is %s, too little for an index of %d MiB (config.index.memory_bytes_max) and 64 MiB for the rest. Raise the limit, or lower the setting." (toString $.Values.redis.bundled.resources.limits.memory) (div (int64 .index) 1048576)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
