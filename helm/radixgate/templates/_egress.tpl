{{/* The ports of the chart's own pods that gateways connect to, by component, as YAML of NetworkPolicy ports. */}}
{{- define "radixgate.innerPorts" -}}
{{- $found := dict -}}
{{- if eq .Values.redis.mode "bundled" -}}
{{- $_ := set $found "valkey" (list (dict "port" 6379 "protocol" "TCP")) -}}
{{- end -}}
{{- if eq (include "radixgate.databaseMode" .) "bundled" -}}
{{- $_ := set $found "postgres" (list (dict "port" 5432 "protocol" "TCP")) -}}
{{- end -}}
{{- if int .Values.workers.embedded.replicas -}}
{{- /* The two ports after that of HTTP have KV events and their replay. */ -}}
{{- $_ := set $found "worker" (list (dict "port" 30000 "endPort" 30002 "protocol" "TCP")) -}}
{{- end -}}
{{- range include "radixgate.pools" . | fromYamlArray -}}
{{- $last := include "radixgate.poolLastPort" . | int -}}
{{- $_ := set $found .component (list (dict "port" 30000 "endPort" $last "protocol" "TCP")) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The port of a URL, else that of its scheme. */}}
{{- define "radixgate.urlPort" -}}
{{- $parts := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $parts.host | trimPrefix ":" -}}
{{- default (ternary "80" "443" (eq $parts.scheme "http")) $port -}}
{{- end -}}

{{/*
What a gateway calls outside of the chart: by name of networkPolicy.egress.to, the ports as YAML. Ports of addresses in
Secrets are those of networkPolicy.egress.ports.
*/}}
{{- define "radixgate.egressPorts" -}}
{{- $values := .Values -}}
{{- $ports := $values.networkPolicy.egress.ports -}}
{{- $config := include "radixgate.config" . | fromYaml -}}
{{- $found := dict -}}
{{- if eq $values.redis.mode "external" -}}
{{- $url := $values.redis.external.url -}}
{{- $named := ternary (list $ports.redis) list (or (not $url) (contains "${" $url)) -}}
{{- range regexFindAll ":[0-9]+" (ternary $url "" (empty $named)) -1 -}}
{{- $named = append $named (trimPrefix ":" . | int) -}}
{{- end -}}
{{- $_ := set $found "redis" $named -}}
{{- end -}}
{{- if eq (include "radixgate.databaseMode" .) "external" -}}
{{- $_ := set $found "database" (list $ports.database) -}}
{{- end -}}
{{- $urls := dict "workers" list "issuers" list "webhooks" list "otlp" list "s3" list -}}
{{- range $values.workers.external -}}
{{- $_ := set $urls "workers" (append $urls.workers .url) -}}
{{- range list .kv_events .load_feed -}}
{{- if kindIs "map" . -}}
{{- range compact (list .endpoint .replay_endpoint) -}}
{{- $_ := set $urls "workers" (append $urls.workers .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $values.workers.discovery -}}
{{- if and (ne .kind "redis") (ne .kind "file") -}}
{{- $_ := set $urls "workers" (append $urls.workers (printf "http://discovered:%d" (int (default 8000 .port)))) -}}
{{- end -}}
{{- end -}}
{{- if include "radixgate.asksCluster" . -}}
{{- $_ := set $found "kubernetes" $ports.kubernetes -}}
{{- end -}}
{{- range concat $values.tokenIssuers $values.operatorIssuers -}}
{{- $_ := set $urls "issuers" (append $urls.issuers .issuer) -}}
{{- end -}}
{{- range $values.webhooks -}}
{{- $_ := set $urls "webhooks" (append $urls.webhooks .url) -}}
{{- end -}}
{{- with dig "telemetry" "otlp_endpoint" "" $config -}}
{{- $_ := set $urls "otlp" (list .) -}}
{{- end -}}
{{- if dig "files" "s3" dict $config -}}
{{- $_ := set $urls "s3" (list (dig "files" "s3" "endpoint" "" $config | default "https://s3.amazonaws.com")) -}}
{{- end -}}
{{- range $name, $each := $urls -}}
{{- range $each -}}
{{- $port := include "radixgate.urlPort" . | int -}}
{{- $_ := set $found $name (append (get $found $name | default list) $port) -}}
{{- end -}}
{{- end -}}
{{- range $name, $each := $found -}}
{{- $_ := set $found $name (uniq $each) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
