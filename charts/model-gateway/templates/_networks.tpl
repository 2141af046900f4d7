{{/* Where API and operator both go: names, the Kubernetes API (no label selects it), Redis. */}}
{{- define "gateway.egress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports:
    {{- range .Values.networkPolicies.kubernetesPorts }}
    - port: {{ . }}
    {{- end }}
{{- if .Values.redis.enabled }}
- ports: [{port: redis}]
  to:
    - podSelector:
        matchLabels:
          {{- include "gateway.selector" (dict "root" $ "component" "redis") | nindent 10 }}
{{- else }}
- ports:
    {{- range .Values.networkPolicies.redisPorts }}
    - port: {{ . }}
    {{- end }}
{{- end }}
{{- end -}}
