{{/* CEL expressions, equal to those of src/manifests/cel.rs and src/manifests/validating_policy. Lists are returned as JSON. */}}

{{/* A glob pattern (* and ?) as a part of a regular expression. */}}
{{- define "spark-usher.glob" -}}
{{ regexReplaceAll "([^A-Za-z0-9_:/ *?\\x{80}-\\x{10FFFF}-])" . "\\${1}" | replace "*" ".*" | replace "?" "." }}
{{- end }}

{{/* A glob pattern as a regular expression. */}}
{{- define "spark-usher.regex" -}}
^{{ include "spark-usher.glob" . }}$
{{- end }}

{{/* A list of glob patterns as one regular expression, quoted. */}}
{{- define "spark-usher.anyOf" -}}
{{- $bodies := list }}
{{- range . }}
{{- $bodies = append $bodies (include "spark-usher.glob" .) }}
{{- end }}
{{- include "spark-usher.quote" (printf "(?s)^(?:%s)$" (join "|" $bodies)) }}
{{- end }}

{{/* A CEL string literal. */}}
{{- define "spark-usher.quote" -}}
{{ toJson . | replace "\\u003c" "<" | replace "\\u003e" ">" | replace "\\u0026" "&" }}
{{- end }}

{{/* Conditions equivalent to a label selector. */}}
{{- define "spark-usher.selects" -}}
{{- $labels := .labels }}
{{- $out := list }}
{{- range $key, $value := dig "matchLabels" dict .selector }}
{{- $out = append $out (printf "(has(%s) && %s in %s && %s[%s] in %s)" $labels (toJson $key) $labels $labels (toJson $key) (toJson (list $value))) }}
{{- end }}
{{- range dig "matchExpressions" list .selector }}
{{- $key := toJson .key }}
{{- $exists := printf "has(%s) && %s in %s" $labels $key $labels }}
{{- $in := printf "%s && %s[%s] in %s" $exists $labels $key (default list .values | uniq | sortAlpha | toJson) }}
{{- if eq .operator "In" }}
{{- $out = append $out (printf "(%s)" $in) }}
{{- else if eq .operator "NotIn" }}
{{- $out = append $out (printf "!(%s)" $in) }}
{{- else if eq .operator "Exists" }}
{{- $out = append $out (printf "(%s)" $exists) }}
{{- else }}
{{- $out = append $out (printf "!(%s)" $exists) }}
{{- end }}
{{- end }}
{{- toJson $out }}
{{- end }}

{{/* Conditions equivalent to the `match` of one policy. */}}
{{- define "spark-usher.conditions" -}}
{{- $out := list }}
{{- with dig "match" "namespaces" list .policy }}
{{- $out = append $out (printf "request.namespace.matches(%s)" (include "spark-usher.anyOf" .)) }}
{{- end }}
{{- $pods := include "spark-usher.selects" (dict "selector" (dig "match" "podSelector" dict .policy) "labels" (printf "%s.metadata.labels" .pod)) | fromJsonArray }}
{{- $out = concat $out $pods }}
{{- if .namespaces }}
{{- $out = concat $out (include "spark-usher.selects" (dict "selector" (dig "match" "namespaceSelector" dict .policy) "labels" "namespaceObject.metadata.labels") | fromJsonArray) }}
{{- end }}
{{- toJson $out }}
{{- end }}

{{/* Conditions under which a pod matches the policy with this index, and no earlier one. */}}
{{- define "spark-usher.first" -}}
{{- $ := . }}
{{- $out := list }}
{{- range $number, $policy := .all }}
{{- if le $number $.index }}
{{- $terms := include "spark-usher.conditions" (dict "policy" $policy "pod" $.pod "namespaces" $.namespaces) | fromJsonArray }}
{{- if eq $number $.index }}
{{- $out = concat $out $terms }}
{{- else if or $.namespaces (eq (include "spark-usher.selects" (dict "selector" (dig "match" "namespaceSelector" dict $policy) "labels" "x")) "[]") }}
{{- $out = append $out (printf "!(%s)" (join " && " $terms)) }}
{{- end }}
{{- end }}
{{- end }}
{{- default "true" (join " && " $out) }}
{{- end }}

{{/* The same for the pod and, in an update, for the old pod. */}}
{{- define "spark-usher.either" -}}
{{- $new := include "spark-usher.first" (merge (dict "pod" "object") .) }}
{{- $old := include "spark-usher.first" (merge (dict "pod" "oldObject") .) }}
{{- if eq $new $old }}{{ $new }}{{ else }}{{ printf "%s || request.operation == \"UPDATE\" && %s" $new $old }}{{ end }}
{{- end }}
