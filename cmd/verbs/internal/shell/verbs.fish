# fish completion for verbs
function __verbs_words
	verbs words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null
end
complete -c verbs -n 'count (__verbs_words) >/dev/null' -f -a '(__verbs_words)'
