"""The words that prompts are made of: common English, lower case, so that every prompt is valid text."""

_TEXT = """
    able about above across act add after again age agree air all allow almost alone along also always among amount
    animal answer any appear apple area arm around arrive art ask autumn away baby back bad bag ball bank base basket
    bath bear beat beautiful because become bed before begin behind believe bell below beside best better between big
    bird bit black blow blue board boat body bone book born both bottle bottom box boy branch bread break bridge bright
    bring brother brown build burn bus business busy butter buy by cake call camp can car card care carry case castle
    cat catch cause centre certain chair chance change cheap child choose church circle city class clean clear climb
    clock close cloth cloud coat coffee cold collect colour come common compare complete condition consider contain
    continue control cook cool copy corner correct cost could count country course cover cross cup cut dance danger
    dark daughter day dead dear decide deep desk different difficult dinner direct discover dish doctor dog door double
    down draw dream dress drink drive drop dry during dust each early earth east easy eat edge effect egg eight either
    electric else empty end engine enjoy enough enter equal evening ever every example expect explain eye face fact
    fair fall family famous far farm fast father fear feel few field fight figure fill final find fine finger finish
    fire first fish fit five floor flower fly follow food foot forest forget form forward four free fresh friend from
    front fruit full game garden gate general gentle get girl give glad glass go gold good grass great green ground
    group grow guess guide half hall hand happen happy hard hat have head hear heart heavy height help here high hill
    history hold hole home hope horse hot hotel hour house how hundred hurry ice idea important in inside instead
    interest iron island job join journey jump just keep key kind king kitchen knife know lady lake lamp land language
    large last late laugh lead leaf learn leave left less lesson letter level library lie life light like line list
    listen little live long look lose lot love low lunch machine main make man many map mark market matter may meal
    mean measure meat meet member middle might mile milk mind minute miss mix modern moment money month moon more
    morning most mother mountain mouth move much music must name narrow nature near need never new news next night nine
    noise north note nothing notice now number object ocean of off offer office often oil old on once one only open
    orange order other our out outside over own page paint pair paper parent park part party pass past path pay pen
    people perhaps person picture piece place plan plant plate play please point poor possible post potato power
    prepare press pretty price print problem produce promise proper protect pull purpose push put quarter queen
    question quick quiet quite race radio rain raise reach read ready real reason receive record red remember rest rich
    ride right ring rise river road rock roof room round row rule run safe sail salt same sand say school science sea
    season seat second secret see seem sell send sentence seven several shade shape share sharp ship shirt shoe shop
    short should show side sight sign silver similar simple since sing sister six size skin sky sleep slow small smell
    smile snow so soft soil some son song soon sound soup south space speak special spend spoon spring square stand
    star start station stay step stick still stone stop store storm story straight strange street strong student study
    such sudden sugar suit summer sun sure sweet swim table take talk tall taste teach team tell ten test than thank
    that then there these thick thin thing think third this those though thought thousand three through throw time tiny
    today together tomorrow tool top touch toward town train travel tree trip true trust try turn twelve twenty two
    under understand until up use usual valley very village visit voice wait walk wall want warm wash watch water wave
    way weather week weight welcome well west wet what wheel when where which while white who whole why wide wife wild
    wind window winter wish with without woman wonder wood word work world worry write wrong year yellow yes yesterday
    yet young your zero
"""

WORDS = tuple(_TEXT.split())
