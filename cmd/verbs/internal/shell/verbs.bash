# bash completion for verbs
_verbs() {
	local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT} words last found
	read -ra words <<<"$line" # COMP_WORDS has the parts of addresses, between colons
	[[ $line == *[[:space:]] ]] && words+=("")
	last=${words[${#words[@]}-1]}
	IFS=$'\n'
	found=($(verbs words -- "${words[@]:1}" 2>/dev/null))
	[[ $COMP_WORDBREAKS == *:* && $last == *:* ]] && found=("${found[@]#"${last%"${last##*:}"}"}")
	COMPREPLY=("${found[@]}")
}
complete -o default -F _verbs verbs
